"""Layers, copies and sums of gradients that stages send each other.

A layer moves to the stage that uses it next. Data-parallel groups exchange copies of layers,
buffers and partial sums of gradients.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId
from naspipe.engine.commands import PushVersion
from naspipe.engine.events import BUFFERS, COPY, LAYER, STATE, SUM, VersionArrived
from naspipe.jobs.ports import Positions
from naspipe.machine.out_of_memory import MemoryRetry
from naspipe.wire.messages import VersionMessage
from naspipe.wire.ports import Transport
from naspipe.worker.blocks.ports import GradientSum, Part
from naspipe.worker.blocks.updates import StageUpdates
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.kept_state import Statistics
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.placement import Placement

_PARTS = {
    STATE: ("param/", "optimizer/"),
    COPY: ("param/",),
    BUFFERS: (),
}
"""Kinds of tensors in a copy, by parcel, without the buffers."""

_COUNT, _SUM, _STATISTICS, _OPTIONS = "passes", "sum", "statistics", "options"
"""Contents of a sum: the number of passes, gradients by part and name, statistics by pass and name,
and the options with which the passes used the layer."""


class LayerExchange:
    """Sends and receives layers, and copies and sums between groups, for one stage.

    With a memory budget, the host memory of a layer that leaves is reused for the next to arrive.
    ``updates`` holds the sums of gradients; it is None if nothing is trained.
    """

    def __init__(
        self,
        stores: Sequence[LayerStore],
        placement: Placement,
        transport: Transport,
        positions: Positions,
        memory_retry: MemoryRetry,
        updates: StageUpdates | None = None,
    ) -> None:
        self._stores = tuple(stores)
        self._placement = placement
        self._transport = transport
        self._positions = positions
        self._memory_retry = memory_retry
        self._updates = updates
        self._sent: Counter[str] = Counter()

    @property
    def measured(self) -> dict[str, int]:
        """Bytes of layers, sums and other copies that were sent so far."""
        copied = self._sent[COPY] + self._sent[STATE] + self._sent[BUFFERS]
        pushed, summed = self._sent[LAYER], self._sent[SUM]
        return {"pushed_bytes": pushed, "summed_bytes": summed, "copied_bytes": copied}

    def push(self, command: PushVersion) -> None:
        layer, version, parcel = command.layer, command.version, command.parcel
        contents = self._memory_retry.attempt(lambda: self._contents(command))
        message = VersionMessage(layer, version, contents, parcel)
        sending = self._transport.send(self._positions.worker(command.stage), message)
        self._sent[parcel] += sending.nbytes
        if parcel == LAYER:
            self._placement.leave(layer, sending.is_over)
            self._stores[layer.stream].leave(layer)
        elif parcel == SUM:
            self._placement.leave(layer, lambda: True)
            self._stores[layer.stream].give_up(layer)

    def take(self, message: VersionMessage) -> VersionArrived:
        self._memory_retry.attempt(lambda: self._take(message))
        return VersionArrived(time.monotonic_ns(), message.layer, message.version, message.parcel)

    def _take(self, message: VersionMessage) -> None:
        layer, version, state, parcel = message
        if parcel == SUM:
            self._summing(layer).take_sum(layer, version, self._read_sum(state))
        elif parcel == BUFFERS:
            kept = [(name, received.kept()) for name, received in state]
            self._stores[layer.stream].come_back(layer).take_buffers(kept)
        else:
            stored = self._stores[layer.stream].come_back(layer)
            self._placement.expect(layer)
            stored.take_over(version, state)
            self._placement.settle(layer)

    def _contents(self, command: PushVersion) -> Sequence[tuple[str, Any]]:
        layer, version, parcel = command.layer, command.version, command.parcel
        if parcel == SUM:
            return _write_sum(self._summing(layer).give_sum(layer, version))
        stored = self._stores[layer.stream][layer]
        if parcel == LAYER:
            state = stored.hand_over()
            if command.skips_buffers:
                state = [pair for pair in state if not pair[0].startswith("buffer/")]
            return state
        kinds = _PARTS[parcel] if command.skips_buffers else (*_PARTS[parcel], "buffer/")
        return stored.copied(*kinds, lends=not self._placement.shares_memory)

    def _summing(self, layer: LayerId) -> StageUpdates:
        if self._updates is None:
            raise InvariantError(f"layer {layer}: this stage trains nothing and adds nothing up")
        return self._updates

    def _read_sum(self, state: Sequence[tuple[str, Any]]) -> GradientSum:
        values = {name: each.value() for name, each in state}
        count, options = int(values.pop(_COUNT)), frozenset(map(int, values.pop(_OPTIONS)))
        statistics: dict[int, Statistics] = {}
        parts: dict[Part, Gradients] = {}
        for text, value in values.items():
            tensor = self._placement.receive(value)
            what, first, number, name = text.split(" ", 3)
            if what == _STATISTICS:
                statistics.setdefault(int(first), {})[name] = tensor
            else:
                parts.setdefault((int(first), int(number)), {})[name] = tensor
        return GradientSum(parts, count, statistics, options)


def _write_sum(given: GradientSum) -> list[tuple[str, Any]]:
    gradients = [
        (f"{_SUM} {first} {count} {name}", tensor)
        for (first, count), part in given.parts.items()
        for name, tensor in part.items()
    ]
    statistics = [
        (f"{_STATISTICS} {number} 1 {buffer}", tensor)
        for number, each in given.statistics.items()
        for buffer, tensor in each.items()
    ]
    numbers = [(_COUNT, given.num_passes), (_OPTIONS, sorted(given.options))]
    return [*numbers, *gradients, *statistics]
