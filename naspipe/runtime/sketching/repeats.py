"""What of a space may remember more than a run keeps, computed again on a few items."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from naspipe.core.space import Elastic, Space
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.layers.buffers import SwappedBufferError
from naspipe.runtime.layers.edited_parameters import EditedParameterError
from naspipe.runtime.layers.kept_state import HOOKS
from naspipe.runtime.sketching.repeated_layer import NotRepeatedError, RepeatedLayer
from naspipe.runtime.sketching.repeated_loss import check_repeated
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
            if module is None or _is_users(space, block, module):
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
                except (NotRepeatedError, EditedParameterError, SwappedBufferError):
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
        for block, place in enumerate(places if self.wants_loss else places[: last + 1]):
            if time.monotonic() > end:
                return
            go_on()
            layer = RepeatedLayer(
                workload, block, options[block], batches, self.edit_obstacle, self.has_budget
            )
            if place not in self.wanted:
                inputs = layer.outputs(inputs)
                continue
            inputs = layer.repeated(inputs)
            self.wanted.discard(place)
            if layer.remembers:
                self.remembers[place] = layer.remembers
        if self.wants_loss and len(options) == len(blocks):
            check_repeated(workload, inputs, batches)


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
