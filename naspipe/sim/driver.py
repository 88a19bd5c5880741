"""Carries a controller's commands out on the virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from naspipe.core.access import Access, AccessKind
from naspipe.core.commands import Command, RecordAccess, RetireSubnet, RunTask, SendOutput
from naspipe.core.commands import WriteLayer as WriteCommand
from naspipe.core.errors import InvariantError
from naspipe.core.events import (
    BlockFinished,
    Event,
    InputArrived,
    Priorities,
    SubnetAdmitted,
    WriteFinished,
)
from naspipe.core.ids import StageId
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.core.task import Task
from naspipe.sim.costs import Costs
from naspipe.sim.engine import Engine
from naspipe.stage.admission import AdmissionWindow
from naspipe.stage.controller import StageController

Admitted = Callable[[int], tuple[Subnet, Partition, Priorities | None]]
"""What a stage is told of a sequence ID when it is admitted."""


class SimulatedStage:
    """One compute lane: pending WRITEs first, then the next block of the current run."""

    def __init__(
        self,
        controller: StageController,
        engine: Engine,
        costs: Costs,
        admission: AdmissionWindow,
        admitted: Admitted,
    ) -> None:
        self.controller = controller
        self.accesses: list[Access] = []
        self.peers: Sequence[SimulatedStage] = ()
        self.admission = admission
        self._engine = engine
        self._costs = costs
        self._admitted = admitted
        self._writes: deque[WriteCommand] = deque()
        self._run: deque[tuple[int, int]] = deque()
        self._task: Task | None = None
        self._is_busy = False

    def start(self) -> None:
        """Admit the first window of subnets."""
        self._admit(self.admission.open())

    def receive(self, task: Task) -> None:
        """The input of a task arrived."""
        self._admit(self.admission.reach(task.sequence_id))
        self._tell(InputArrived(self._engine.now_ns, task))

    def _admit(self, sequence_ids: range) -> None:
        for sequence_id in sequence_ids:
            self._tell(SubnetAdmitted(self._engine.now_ns, *self._admitted(sequence_id)))

    def _tell(self, event: Event) -> None:
        for command in self.controller.handle(event):
            self._carry_out(command)
        self._advance()

    def _carry_out(self, command: Command) -> None:
        match command:
            case RunTask(task, reads):
                kind = AccessKind(task.kind.value)
                self._task = task
                self._run.extend(
                    (layer.block, self._costs.access_ns(layer, kind)) for layer, _ in reads
                )
            case WriteCommand():
                self._writes.append(command)
            case SendOutput(receiver):
                delay_ns = self._costs.message_ns(receiver)
                peer = self.peers[receiver.stage]
                self._engine.after(delay_ns, lambda: peer.receive(receiver))
            case RecordAccess(access):
                self.accesses.append(access)
            case RetireSubnet(_, sequence_id):
                more = self.admission.retire(sequence_id)
                self._engine.after(0, lambda: self._admit(more))

    def _advance(self) -> None:
        if self._is_busy:
            return
        start_ns = self._engine.now_ns
        if self._writes:
            write = self._writes.popleft()
            self._occupy(
                self._costs.access_ns(write.layer, AccessKind.WRITE),
                lambda: WriteFinished(
                    self._engine.now_ns, write.layer, write.sequence_id, start_ns
                ),
            )
        elif self._run and self._task is not None:
            task, (block, duration_ns) = self._task, self._run.popleft()
            self._occupy(
                duration_ns, lambda: BlockFinished(self._engine.now_ns, task, block, start_ns)
            )

    def _occupy(self, duration_ns: int, finish: Callable[[], Event]) -> None:
        self._is_busy = True

        def finished() -> None:
            self._is_busy = False
            self._tell(finish())

        self._engine.after(duration_ns, finished)


def simulate(
    admitted: Admitted,
    num_subnets: int,
    controllers: Sequence[StageController],
    costs: Costs,
    window: int,
) -> list[list[Access]]:
    """Run one stream to its end; returns each stage's accesses in the order of their ends.

    ``admitted`` is asked for the sequence IDs 0 to ``num_subnets`` - 1.

    Raises:
        InvariantError: when the schedule stops before every subnet is finished.
    """
    engine = Engine()
    stages = [
        SimulatedStage(controller, engine, costs, AdmissionWindow(window, num_subnets), admitted)
        for controller in controllers
    ]
    for stage in stages:
        stage.peers = stages
    for stage in stages:
        stage.start()
    engine.run()
    for number, stage in enumerate(stages):
        if not stage.admission.is_finished:
            raise InvariantError(
                f"stage {StageId(number)} stopped before subnet {stage.admission.oldest} was "
                f"finished: " + "; ".join(stage.controller.unfinished[:3])
            )
    return [stage.accesses for stage in stages]
