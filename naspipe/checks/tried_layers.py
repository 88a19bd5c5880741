"""Call layers with user code, and the loss, on a few items, to find code that runs do not support.

This means gradients for tensors outside of the layers, forwards that change their own parameters,
buffers that grow in swapped layers, and values that a layer or the loss keeps outside of parameters
and buffers. The stages of a run refuse the first three when they occur. The last is detected by the
verification of the first steps, but only in layers that these steps use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from naspipe.checks.sketched import SketchedLayers
from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.jobs.losses import check_one_number, has_users_code, name_of_loss
from naspipe.jobs.workload import Workload, field_of
from naspipe.machine.determinism import layer_seed, seed_draws
from naspipe.machine.staging import same_bits
from naspipe.worker.blocks.guards import LossState, OutsideGradientError, check_loss_leaves
from naspipe.worker.blocks.segment import Segment, autocast
from naspipe.worker.blocks.specs import Tensors, spec_of
from naspipe.worker.layers.bound_layer import BoundLayer, EditedParameterError
from naspipe.worker.layers.kept_state import SwappedBufferError, buffer_bytes, check_sizes

ITEMS = 4
"""Number of items of the batch that are used; all of them if a layer does not accept so few."""

MOST_SECONDS = 2.0
"""Time limit for all calls; remaining layers are not called."""

Batch = Mapping[str, Any]
Place = tuple[int, int]
"""Block and candidate."""


class NotRepeatedError(ConfigError):
    """A layer or the loss returns different results for the same inputs, weights and draws."""


def users_layers(space: Space, layers: SketchedLayers) -> list[Place]:
    """Return the layers with user code, once for all candidates of the same factory."""
    known: dict[Hashable, Place] = {}
    for block, candidate in layers.places():
        module = layers.module(block, candidate)
        hooked = layers.has_tensor_hooks(block, candidate)
        if module is None or hooked or has_users_code(space.blocks[block], module):
            known.setdefault(layers.key(block, candidate), (block, candidate))
    return list(known.values())


@dataclass(slots=True)
class TriedLayers:
    """Calls layers and the loss of a workload, in a separate process that is used only for this."""

    workload: Workload
    batch: Batch
    wanted: set[Place]
    """The layers to call; a layer is removed after its call."""
    wants_loss: bool
    edit_obstacle: str = ""
    """The feature of the run that does not support forwards that change parameters."""
    has_budget: bool = False
    """True if layers are swapped."""

    def follow(self, chains: Iterable[Sequence[int]], go_on: Callable[[], None]) -> None:
        """Call the wanted layers of these subnets within the time limit.

        Args:
            chains: subnets as one option per block.
            go_on: called between layers.

        Raises:
            OutsideGradientError: for a gradient of a tensor outside of the layers.
            EditedParameterError: for a layer whose forward changes its own parameters, if the run
                does not support that.
            SwappedBufferError: for a layer whose buffers grow, if layers are swapped.
            NotRepeatedError: for a layer or a loss whose results change after it was called with
                other items.
        """
        end = time.monotonic() + MOST_SECONDS
        tensors = [each for each in self.batch.values() if torch.is_tensor(each) and each.dim()]
        batches = [self.batch]
        if len({*map(len, tensors)}) == 1 and len(tensors[0]) > ITEMS:
            few = {
                name: each[:ITEMS] if torch.is_tensor(each) and each.dim() else each
                for name, each in self.batch.items()
            }
            batches = [few, self.batch]
        for options in chains:
            if not (self.wanted or self.wants_loss) or time.monotonic() > end:
                return
            for batch in batches:
                try:
                    self._follow(options, batch, end, go_on)
                    break
                except (
                    OutsideGradientError,
                    EditedParameterError,
                    SwappedBufferError,
                    NotRepeatedError,
                ):
                    raise
                except Exception:  # it cannot be called like this; the run reports the error
                    continue
            self.wants_loss = False

    def _follow(
        self, options: Sequence[int], batch: Batch, end: float, go_on: Callable[[], None]
    ) -> None:
        workload, blocks = self.workload, self.workload.space.blocks
        places = [(block, blocks[block].candidate(option)) for block, option in enumerate(options)]
        wanted = [block for block, place in enumerate(places) if place in self.wanted]
        count = len(places) if self.wants_loss else max(wanted, default=-1) + 1
        has_loss = self.wants_loss and len(places) == len(blocks) and not workload.has_loss_layer

        def called(other: Batch | None) -> Iterator[Tensors]:
            tensors = others = workload.tapped(batch) if workload.tapped else ()
            if other and workload.tapped:
                others = workload.tapped(other)
            for block, option in enumerate(options[:count]):
                go_on()
                module = self._made(block, option)
                if other:  # values that it keeps from these items must have no effect
                    with _put_back(module):
                        self._call(module, block, option, other, others)
                tensors = self._call(module, block, option, batch, tensors)
                if other:  # nor values that other layers or the loss find elsewhere
                    module = self._made(block, option, is_original=True)
                    others = self._call(module, block, option, other, others)
                yield tensors
            if has_loss:
                yield (self._call_loss(batch, tensors),)

        first: list[Tensors] = []
        for outputs in called(None):
            if time.monotonic() > end:
                return
            first.append(outputs)
        self.wanted.difference_update(places[:count])
        for block, (before, after) in enumerate(zip(first, called(_other(batch)), strict=True)):
            if not all(map(same_bits, before, after)):
                raise self._not_repeated(block, options)
            if time.monotonic() > end:
                return

    def _not_repeated(self, block: int, options: Sequence[int]) -> NotRepeatedError:
        workload = self.workload
        if block < len(options):
            kind = type(self._made(block, options[block])).__name__
            who = f"layer {workload.space.option_label(block, options[block])} ({kind})"
            expected = "output for the same inputs, weights and draws"
        else:
            who = f"loss {name_of_loss(workload.loss)}"
            expected = "number for the same outputs and batch"
        return NotRepeatedError(
            f"{who}: expected the same {expected}, but a second call returned something else "
            f"after other items had been computed in between; a run keeps only parameters and "
            f"buffers, so use register_buffer for what a call changes, return what another layer "
            f"or the loss needs beside the output, and draw from torch's global generator"
        )

    def _made(self, block: int, option: int, is_original: bool = False) -> nn.Module:
        """Make a new layer; with ``is_original``, return the module that its factory copies."""
        workload, own = self.workload, self.workload.space.blocks[block]
        candidate = own.candidate(option)
        factory: Any = own.candidates[candidate]
        seed_draws(layer_seed(workload.definition.seed, block, candidate))
        has_original = is_original and getattr(factory, "original", None) is not None
        module: nn.Module = factory.in_place() if has_original else factory()
        own.set_mode(module, workload.runs_in_training_mode)
        return module

    def _call(
        self, module: nn.Module, block: int, option: int, batch: Batch, inputs: Tensors
    ) -> Tensors:
        """Return the outputs of a layer for an option of its block."""
        workload, space = self.workload, self.workload.space
        own = space.blocks[block]
        apply = own.apply if isinstance(own, Elastic) else None
        call = module if apply is None else partial(apply, module)
        layer = BoundLayer(module, call, dict(module.named_parameters()), is_first=True)
        spec = spec_of(space, workload.recipe, block, option)._replace(
            edit_obstacle=self.edit_obstacle,
            fields=tuple(field_of(batch, name, 0) for name in space.fields(block)),
        )
        if spec.computes_loss:

            def finish(outputs: Tensors) -> Tensors:
                fields = [field_of(batch, name, 0) for name in workload.loss_fields]
                found = workload.objective_of(module)(*outputs, *fields)
                check_one_number(f"loss {type(module).__name__}", found)
                return (found,)

            spec = spec._replace(finish=finish)
        made = buffer_bytes(module)
        outputs = Segment(spec, layer, inputs, keeps_graph=True).forward()
        if self.has_budget:
            check_sizes(space.label(block, own.candidate(option)), module, made)
        return outputs

    def _call_loss(self, batch: Batch, outputs: Tensors) -> torch.Tensor:
        workload, loss = self.workload, self.workload.loss
        fields = [field_of(batch, name, 0) for name in workload.loss_fields]
        leaves = [each.detach().requires_grad_(each.requires_grad) for each in outputs]
        seed_draws(0)
        with torch.enable_grad(), autocast(workload.recipe.precision, "cpu"):
            try:
                with LossState(loss).left_as_it_is():
                    found = workload.objective(*leaves, *fields)
            except ConfigError as error:
                raise NotRepeatedError(str(error)) from error
            if isinstance(found, torch.Tensor):
                check_loss_leaves(name_of_loss(loss), loss, (found,), (*leaves, *fields))
        return found.detach()


@contextmanager
def _put_back(module: nn.Module) -> Iterator[None]:
    """Restore the parameters and buffers of a module on exit."""
    slots: list[dict[str, Any]] = [
        each for part in module.modules() for each in (part._parameters, part._buffers)
    ]
    before = [dict(own) for own in slots]
    tensors = [each for own in before for each in own.values() if each is not None]
    values = [each.detach().clone() for each in tensors]
    yield
    with torch.no_grad():
        for own, kept in zip(slots, before, strict=True):
            own.clear()
            own.update(kept)
        for tensor, value in zip(tensors, values, strict=True):
            if not same_bits(tensor, value):
                tensor.copy_(value)


def _other(batch: Batch) -> Batch:
    """Return the same items in another order, with floating-point values halved.

    Without halving, a mean over all items could be the same. Fields of a different length are not
    changed, because they may be the same in all batches.
    """
    tensors = {n: each for n, each in batch.items() if torch.is_tensor(each) and each.dim()}
    lengths = [*map(len, tensors.values())]
    items = max(lengths, key=lengths.count, default=0)
    flipped = {name: each.flip(0) for name, each in tensors.items() if len(each) == items}
    halved = {n: each * 0.5 for n, each in flipped.items() if each.is_floating_point()}
    return {**batch, **flipped, **halved}
