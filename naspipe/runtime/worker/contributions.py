"""Contributions to exchanges: handed to the stages that wait for them, and taken from others."""

from __future__ import annotations

import time

from naspipe.config.ids import StageId
from naspipe.core.commands import Contribute
from naspipe.core.events import ContributionArrived
from naspipe.runtime.blocks.ports import Updates
from naspipe.runtime.jobs.ports import Positions
from naspipe.runtime.wire.messages import ContributionMessage
from naspipe.runtime.wire.ports import Transport


class Contributions:
    """One stage's part.

    Args:
        stage: which one.
        updates: makes contributions, and keeps them until the WRITEs of their step.
        transport: the way to the other workers.
        positions: which of them holds which stage.
    """

    def __init__(
        self, stage: StageId, updates: Updates, transport: Transport, positions: Positions
    ) -> None:
        self._stage = stage
        self._updates = updates
        self._transport = transport
        self._positions = positions

    def hand_out(self, command: Contribute) -> list[ContributionArrived]:
        """All gradients of a step are here: tell the others, and this stage if it waits too."""
        name, stream, first = command.exchange, command.stream, command.sequence_id
        values = self._updates.contribution(command)
        message = ContributionMessage(name, stream, first, self._stage, values)
        arrived = []
        for stage in command.receivers:
            if stage == self._stage:
                arrived.append(self.take(message))
            else:
                self._transport.send(self._positions.worker(stage), message)
        return arrived

    def take(self, message: ContributionMessage) -> ContributionArrived:
        """Keep what a stage told."""
        name, stream, first, sender, values = message
        self._updates.take(name, stream, first, sender, values)
        return ContributionArrived(time.monotonic_ns(), name, stream, first, sender)
