"""What of a space may remember more than a run keeps, computed again on a few items."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from naspipe.core.space import Elastic, Space
from naspipe.runtime.blocks.outside_leaves import OutsideGradientError
from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.jobs.losses import name_of_loss
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.layers.buffers import SwappedBufferError
from naspipe.runtime.layers.edited_parameters import EditedParameterError
from naspipe.runtime.layers.kept_state import HOOKS
from naspipe.runtime.sketching.repeated_layer import NotRepeatedError, RepeatedLayer, differ
from naspipe.runtime.sketching.repeated_loss import check_reads, check_repeated, loss_bits
from naspipe.runtime.sketching.sketched import SketchedLayers

ITEMS = 4
"""Of a batch, and as many others; whole batches where a layer does not take so few."""

MOST_SECONDS = 2.0
"""In which layers are computed again; what is left then is left alone."""

_OURS = ("torch.nn.", "naspipe.", "search_spaces.")

Batch = Mapping[str, Any]
Place = tuple[int, int]
"""Block and candidate."""


def users_layers(space: Space, layers: SketchedLayers) -> list[Place]:
    """Those in which anything of the user's runs; of blocks that are alike, of the first one."""
    known: dict[Hashable, Place] = {}
    for block, each in enumerate(space.blocks):
        for candidate in range(len(each.candidates)):
            module = layers.module(block, candidate)
            hooked = layers.has_tensor_hooks(block, candidate)
            if module is None or hooked or _is_users(space, block, module):
                known.setdefault(layers.key(block, candidate), (block, candidate))
    return list(known.values())


def _is_users(space: Space, block: int, module: nn.Module) -> bool:
    """Whether anything that is not torch's or naspipe's own runs in a layer's forward."""
    own = space.blocks[block]
    return (isinstance(own, Elastic) and own.apply is not None) or any(
        has_users_class(part) or "forward" in vars(part) or any(vars(part)[name] for name in HOOKS)
        for part in module.modules()
    )


def has_users_class(thing: object) -> bool:
    """Whether its class is not torch's or naspipe's own; that of a function is not."""
    return not type(thing).__module__.startswith(_OURS)


@dataclass(slots=True)
class Repeats:
    """Computes layers and the loss of a workload again.

    To be used in a process of its own: what they remember of this stays there.
    """

    workload: Workload
    batch: Batch
    wanted: set[Place]
    """The layers that are to be computed; those that have been leave."""
    wants_loss: bool
    edit_obstacle: str = ""
    """What of the run does not carry parameters that a forward changes."""
    has_budget: bool = False
    """Whether layers are swapped."""
    remembers: dict[Place, str] = field(default_factory=dict)
    """Of each layer that changes an attribute in every call, of which nothing depends: which."""
    _writes: dict[tuple[type, str], str] = field(default_factory=dict)
    """Layers by the attributes that their forwards write, with the class of the part."""

    def follow(self, chains: Iterable[Sequence[int]], go_on: Callable[[], None]) -> None:
        """Forward through these subnets, as long as there is anything wanted, and time.

        Args:
            chains: an option of each block.
            go_on: called now and then.

        Raises:
            NotRepeatedError: for the first layer, or the loss, that gives other bits for the same.
            EditedParameterError: for the first layer whose forward changes its own parameters,
                where the run does not carry that.
            SwappedBufferError: for the first layer whose buffers grow, where layers are swapped.
        """
        end = time.monotonic() + MOST_SECONDS
        for options in chains:
            if not (self.wanted or self.wants_loss) or time.monotonic() > end:
                return
            for batches in _pairs(self.batch):
                try:
                    self._follow(options, batches, end, go_on)
                    break
                except (
                    NotRepeatedError,
                    OutsideGradientError,
                    EditedParameterError,
                    SwappedBufferError,
                ):
                    raise
                except Exception:  # it cannot be computed so; what is wrong is said by the run
                    continue
            self.wants_loss = False

    def _follow(
        self,
        options: Sequence[int],
        batches: Sequence[Batch],
        end: float,
        go_on: Callable[[], None],
    ) -> None:
        workload, blocks = self.workload, self.workload.space.blocks
        places = [(block, blocks[block].candidate(option)) for block, option in enumerate(options)]
        last = max(
            (block for block, place in enumerate(places) if place in self.wanted), default=-1
        )
        inputs = [workload.tapped(each) if workload.tapped else () for each in batches]
        made: list[Tensors] = []
        for block, place in enumerate(places if self.wants_loss else places[: last + 1]):
            if time.monotonic() > end:
                return
            go_on()
            layer = RepeatedLayer(
                workload, block, options[block], batches, self.edit_obstacle, self.has_budget
            )
            if place not in self.wanted:
                inputs = layer.outputs(inputs)
                made.append(inputs[0])
                continue
            inputs = layer.repeated(inputs)
            made.append(inputs[0])
            self.wanted.discard(place)
            if layer.remembers:
                self.remembers[place] = layer.remembers
            for each in layer.writes:
                self._writes.setdefault(each, f"layer {workload.space.option_label(*place)}")
        has_loss = self.wants_loss and len(options) == len(blocks)
        if has_loss:
            check_reads(workload, self._writes)
        if has_loss := has_loss and not workload.has_loss_layer:
            check_repeated(workload, inputs, batches)
        if made and time.monotonic() < end:
            go_on()
            self._check_alone(options, batches, made, inputs if has_loss else None)

    def _check_alone(
        self,
        options: Sequence[int],
        batches: Sequence[Batch],
        made: Sequence[Tensors],
        ends: Sequence[Tensors] | None,
    ) -> None:
        """What layers leave behind, in a dict or an object of the user's, may reach no other.

        Until now each layer has computed both batches before the next one did. Now one batch goes
        through the chain alone.

        Args:
            options: of each block.
            batches: two.
            made: of each block, the outputs of the first batch.
            ends: the last outputs of both batches, where the loss is wanted, too.

        Raises:
            NotRepeatedError: naming the first layer that computes something else, or the loss.
        """
        workload = self.workload

        def through(number: int) -> Iterator[Tensors]:
            batch = batches[number]
            state = workload.tapped(batch) if workload.tapped else ()
            for block, option in enumerate(options[: len(made)]):
                state = RepeatedLayer(workload, block, option, batches).output(number, state)
                yield state

        for block, (alone, before) in enumerate(zip(through(0), made, strict=True)):
            if differ(alone, before):
                raise NotRepeatedError(
                    f"layer {workload.space.option_label(block, options[block])}: expected its "
                    f"output to follow from its inputs, weights and draws, found another where the "
                    f"layers before it had computed another batch last; let the layer that leaves "
                    f"a value for another one return it beside its output"
                )
        if ends is None:
            return
        first = loss_bits(workload, 0, ends[0], batches[0])
        for _ in through(1):
            pass
        if differ(loss_bits(workload, 0, ends[0], batches[0]), first):
            raise NotRepeatedError(
                f"loss {name_of_loss(workload.loss)}: expected the same number for the same "
                f"outputs and batch, found another where the layers had computed another batch "
                f"last; let the layer that leaves a value for the loss return it beside its output"
            )


def _pairs(batch: Batch) -> Iterator[Sequence[Batch]]:
    """Two batches each: a few items, where there are so many; then all, in two orders."""
    tensors = {n: each for n, each in batch.items() if torch.is_tensor(each) and each.dim()}
    counts = {len(each) for each in tensors.values()}
    if len(counts) > 1:
        yield batch, batch
        return
    if min(counts, default=0) >= 2 * ITEMS:
        parts = [slice(ITEMS), slice(ITEMS, 2 * ITEMS)]
        yield [{**batch, **{n: each[part] for n, each in tensors.items()}} for part in parts]
    yield batch, {**batch, **{n: each.flip(0) for n, each in tensors.items()}}
