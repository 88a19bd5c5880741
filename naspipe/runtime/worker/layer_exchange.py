"""Layers that leave this stage for that of their next user, and those that come to it."""

from __future__ import annotations

import time

from naspipe.core.commands import PushVersion
from naspipe.core.events import VersionArrived
from naspipe.runtime.blocks.ports import BlockCompute
from naspipe.runtime.wire.messages import VersionMessage
from naspipe.runtime.wire.transport import Transport


class LayerExchange:
    """One stage's part in the mirroring of layers.

    With a memory budget the host memory of a layer that leaves goes to the next one that comes.

    Args:
        compute: has the layers.
        transport: the way to the other stages.
    """

    def __init__(self, compute: BlockCompute, transport: Transport) -> None:
        self._compute = compute
        self._transport = transport
        self.pushed_bytes = 0
        """Handed over so far."""

    def push(self, command: PushVersion) -> None:
        """Hand a layer over to another stage."""
        layer, version, stage = command.layer, command.version, command.stage
        state = self._compute.layer(layer).hand_over()
        sending = self._transport.send_version(stage, layer, version, state)
        self.pushed_bytes += sending.nbytes
        self._compute.placement.leave(layer, sending.is_over)
        self._compute.stores[layer.stream].leave(layer)

    def take(self, message: VersionMessage) -> VersionArrived:
        """Take a layer over from another stage."""
        layer, version, state = message
        stored = self._compute.stores[layer.stream].come_back(layer)
        self._compute.placement.expect(layer)
        stored.take_over(version, state)
        self._compute.placement.settle(layer)
        return VersionArrived(time.monotonic_ns(), layer, version)
