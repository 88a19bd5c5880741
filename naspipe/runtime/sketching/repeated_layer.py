"""A layer must give the same bits for the same inputs, weights and draws: computed again.

A run keeps parameters and buffers, and no more. Whatever else a layer remembers is another thing on
another stage, and behind a resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import nn

from naspipe.core.errors import ConfigError
from naspipe.core.ids import FIRST_STREAM, LayerId
from naspipe.runtime.blocks.segment import Segment
from naspipe.runtime.blocks.specs import Tensors, spec_of
from naspipe.runtime.devices.tensor_bytes import same_bits
from naspipe.runtime.jobs.losses import check_one_number
from naspipe.runtime.jobs.workload import Workload, field_of
from naspipe.runtime.layers.buffers import buffer_bytes, check_sizes
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.runtime.sketching.kept_beside import kept_beside, other_entry

TIMES = 3
"""That the same is computed, and then something else: a change in one of four calls is found."""

Bits = Sequence[torch.Tensor | None]


class NotRepeatedError(ConfigError):
    """Something gives other bits for the same."""


class RepeatedLayer:
    """One layer, made once more where it matters: what it has computed must make no difference.

    Args:
        workload: whose layer.
        block: of the chain.
        option: of the block.
        batches: whose fields the layer is called with; one beside each input.
        edit_obstacle: see ``SegmentSpec``.
        is_swapped: whether the layer's memory comes and goes in the run.
    """

    def __init__(
        self,
        workload: Workload,
        block: int,
        option: int,
        batches: Sequence[Mapping[str, Any]],
        edit_obstacle: str = "",
        is_swapped: bool = False,
    ) -> None:
        self._is_swapped = is_swapped
        self._edit_obstacle = edit_obstacle
        self._workload = workload
        self._place = block, option
        self._batches = batches
        self._stored = self._made()
        self.remembers = ""
        """The attribute that every call changes, though no result has depended on it."""
        self.writes: set[tuple[type, str]] = set()
        """Class of a part and name of each attribute that a forward was seen to write."""

    def outputs(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        """Of each input, computed once."""
        return [self._call(self._stored, *each)[0] for each in enumerate(inputs)]

    def output(self, number: int, inputs: Tensors) -> Tensors:
        """Of one of the two inputs, computed once."""
        return self._call(self._stored, number, inputs)[0]

    def repeated(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        """Of both inputs: the first is computed several times, and the second here and anew.

        Raises:
            NotRepeatedError: when outputs or gradients do not follow from the rest.
        """
        module, fresh = self._stored.module, self._made()
        if not self._workload.begun and differ(_tensors(module), _tensors(fresh.module)):
            raise NotRepeatedError(
                f"{self._said}: expected its factory to make the same weights for the same draws, "
                f"found others the second time; draw them from torch's global generator"
            )
        seen = [kept_beside(module)]
        before = _Kept(module)
        found: list[tuple[Tensors, Bits]] = []
        for _ in range(TIMES):
            found.append(self._call(self._stored, 0, inputs[0]))
            before.put_back()
            seen.append(kept_beside(module))
            if differ(found[-1][1], found[0][1]):
                raise self._refused("when it was computed again", seen)
        self.remembers = other_entry(seen[-2], seen[-1])
        other, behind = self._call(self._stored, 1, inputs[1])
        before.put_back()
        seen.append(kept_beside(module))
        self.writes = _written(module, seen)
        _take_buffers(module, fresh.module)
        if differ(behind, self._call(fresh, 1, inputs[1])[1]):
            raise self._refused("where it had computed something else before", seen[:-1])
        return [found[0][0], other]

    def _refused(self, when: str, seen: Sequence[Mapping[str, Any]]) -> NotRepeatedError:
        changed = other_entry(seen[-2], seen[-1]) or other_entry(seen[0], seen[1])
        named = f" (its attribute {changed} has changed)" if changed else ""
        return NotRepeatedError(
            f"{self._said}: expected the same outputs and gradients for the same inputs, weights "
            f"and draws, found others {when}{named}; a run keeps parameters and buffers alone, so "
            f"register_buffer what a forward changes, and draw from torch's global generator"
        )

    @property
    def _said(self) -> str:
        label = self._workload.space.option_label(*self._place)
        return f"layer {label} ({type(self._stored.module).__name__})"

    def _made(self) -> StoredLayer:
        workload, (block, option) = self._workload, self._place
        trains = workload.runs_in_training_mode
        seed, recipe = workload.definition.seed, workload.recipe
        candidate = workload.space.blocks[block].candidate(option)
        store = LayerStore(workload.space, seed, recipe, trains=trains)
        return store.make(LayerId(FIRST_STREAM, block, candidate))

    def _call(self, stored: StoredLayer, number: int, inputs: Tensors) -> tuple[Tensors, Bits]:
        """The outputs; and these with all gradients."""
        recipe, (block, option) = self._workload.recipe, self._place
        space, batch = self._workload.space, self._batches[number]
        spec = spec_of(space, recipe, block, option)._replace(
            seed=number,
            edit_obstacle=self._edit_obstacle,
            fields=tuple(field_of(batch, name, 0) for name in space.fields(block)),
        )
        if spec.computes_loss:
            spec = spec._replace(finish=partial(self._loss, stored.module, batch))
        segment = Segment(spec, stored.bind(stored.version), inputs, keeps_graph=True)
        made = buffer_bytes(stored.module)
        outputs = segment.forward()
        if self._is_swapped:
            check_sizes(
                space.label(block, space.blocks[block].candidate(option)), stored.module, made
            )
        gradients = segment.backward(tuple(torch.ones_like(each) for each in outputs))
        own = segment.take_gradients()
        return outputs, [*outputs, *gradients, *(own[name] for name in sorted(own))]

    def _loss(
        self, module: nn.Module, batch: Mapping[str, torch.Tensor], outputs: Tensors
    ) -> Tensors:
        workload = self._workload
        fields = [field_of(batch, name, 0) for name in workload.loss_fields]
        found = workload.objective_of(module)(*outputs, *fields)
        check_one_number(f"loss {type(module).__name__}", found)
        return (found,)


class _Kept:
    """The parameters and buffers of a module, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._slots: list[tuple[dict[str, Any], str, Any, Any]] = [
            (slots, name, each, None if each is None else each.detach().clone())
            for part in module.modules()
            for slots in (part._parameters, part._buffers)
            for name, each in slots.items()
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """What has come since then stays."""
        for slots, name, tensor, copied in self._slots:
            slots[name] = tensor
            if tensor is not None:
                tensor.copy_(copied)


def _written(module: nn.Module, seen: Sequence[Mapping[str, Any]]) -> set[tuple[type, str]]:
    """Attributes that were not the same at all times, with the class of the part that has them."""
    parts, missing = dict(module.named_modules()), object()
    names = {name for each in seen for name in each}
    return {
        (type(parts[name.rpartition(".")[0]]), name.rpartition(".")[2])
        for name in names
        if any(each.get(name, missing) != seen[0].get(name, missing) for each in seen)
    }


def _take_buffers(source: nn.Module, target: nn.Module) -> None:
    """Buffers that a forward has made are a layer's state, too."""
    parts = dict(target.named_modules())
    for name, part in source.named_modules():
        for own, each in part._buffers.items() if name in parts else ():
            parts[name]._buffers[own] = None if each is None else each.detach().clone()


def _tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    return chain(module.parameters(), module.buffers())


def differ(one: Iterable[torch.Tensor | None], other: Iterable[torch.Tensor | None]) -> bool:
    """Whether any of these tensors have other bits than those."""
    pairs = zip_longest(one, other)
    return not all(a is None if b is None else same_bits(a, b) for a, b in pairs)
