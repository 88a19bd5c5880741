"""The stages of a step tell one another the norms of its gradients."""

from __future__ import annotations

import time

from naspipe.core.commands import ShareNorms
from naspipe.core.events import NormsArrived
from naspipe.core.ids import StageId
from naspipe.runtime.blocks.ports import BlockCompute
from naspipe.runtime.wire.messages import NormsMessage
from naspipe.runtime.wire.transport import Transport


class NormExchange:
    """One stage's part: every stage tells every other, and works out the same total.

    Args:
        stage: which one.
        compute: measures the norms, and keeps them until the WRITEs of their step.
        transport: the way to the other stages.
    """

    def __init__(self, stage: StageId, compute: BlockCompute, transport: Transport) -> None:
        self._stage = stage
        self._compute = compute
        self._transport = transport

    def share(self, command: ShareNorms) -> NormsArrived:
        """All gradients of a step are there on this stage: tell the others, and this one."""
        stream, first = command.stream, command.sequence_id
        message = NormsMessage(stream, first, self._stage, self._compute.norms(stream, first))
        for stage in range(command.num_stages):
            if stage != self._stage:
                self._transport.send_norms(StageId(stage), message)
        return self.take(message)

    def take(self, message: NormsMessage) -> NormsArrived:
        """Keep what a stage told."""
        stream, first, sender, norms = message
        self._compute.take_norms(stream, first, norms)
        return NormsArrived(time.monotonic_ns(), stream, first, sender)
