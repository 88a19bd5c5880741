"""What tasks compute, handed to the tasks that take it: on other stages, or on this one."""

from __future__ import annotations

from naspipe.config.ids import StageId
from naspipe.config.wiring import CREDIT
from naspipe.core.commands import SendOutput
from naspipe.runtime.blocks.ports import BlockCompute
from naspipe.runtime.jobs.ports import Positions
from naspipe.runtime.wire.messages import InputMessage
from naspipe.runtime.wire.ports import Transport


class OutputSender:
    """One stage's way out for tensors of tasks.

    Args:
        stage: which one.
        compute: has the outputs.
        transport: the way to the other workers.
        positions: which of them holds which stage.
    """

    def __init__(
        self, stage: StageId, compute: BlockCompute, transport: Transport, positions: Positions
    ) -> None:
        self._stage = stage
        self._compute = compute
        self._transport = transport
        self._positions = positions

    def send(self, command: SendOutput) -> None:
        """Hand an output over; a task of this stage has it at once. A credit holds nothing."""
        receiver, name = command.receiver, command.name
        is_credit = name.startswith(CREDIT)
        tensors = () if is_credit else self._compute.output(command.source or receiver, name)
        if receiver.stage == self._stage:
            self._compute.accept(receiver, tensors, name)
        else:
            message = InputMessage(receiver, command.upcoming, tensors, name)
            self._transport.send(self._positions.worker(receiver.stage), message)
