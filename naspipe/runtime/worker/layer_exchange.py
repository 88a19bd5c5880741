"""Layers that leave this stage for that of their next user, and those that come to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from naspipe.core.commands import PushVersion
from naspipe.core.events import VersionArrived
from naspipe.runtime.jobs.ports import Positions
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.memory.placement import Placement
from naspipe.runtime.wire.messages import VersionMessage
from naspipe.runtime.wire.ports import Transport


class LayerExchange:
    """One stage's part in the mirroring of layers.

    With a memory budget the host memory of a layer that leaves goes to the next one that comes.

    Args:
        stores: the layers of each stream.
        placement: where they live.
        transport: the way to the other workers.
        positions: which of them holds which stage.
    """

    def __init__(
        self,
        stores: Sequence[LayerStore],
        placement: Placement,
        transport: Transport,
        positions: Positions,
    ) -> None:
        self._stores = tuple(stores)
        self._placement = placement
        self._transport = transport
        self._positions = positions
        self.pushed_bytes = 0
        """Handed over so far."""

    def push(self, command: PushVersion) -> None:
        """Hand a layer over to another stage."""
        layer, version, stage = command.layer, command.version, command.stage
        store = self._stores[layer.stream]
        state = store[layer].hand_over()
        sending = self._transport.send(
            self._positions.worker(stage), VersionMessage(layer, version, state)
        )
        self.pushed_bytes += sending.nbytes
        self._placement.leave(layer, sending.is_over)
        store.leave(layer)

    def take(self, message: VersionMessage) -> VersionArrived:
        """Take a layer over from another stage."""
        layer, version, state = message
        stored = self._stores[layer.stream].come_back(layer)
        self._placement.expect(layer)
        stored.take_over(version, state)
        self._placement.settle(layer)
        return VersionArrived(time.monotonic_ns(), layer, version)
