"""The virtual driver: carries out the commands of all controllers on a virtual clock."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from naspipe.config.errors import InvariantError
from naspipe.config.ids import Access, AccessKind, LayerId, StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.steps import Steps
from naspipe.config.wiring import CHAIN, InputName, field_input
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.commands import (
    Command,
    Contribute,
    LoadLayer,
    PushVersion,
    RecordAccess,
    RequestField,
    RetireSubnet,
    RunTask,
    SaveLayer,
    SendOutput,
    WriteLayer,
)
from naspipe.engine.controller import StageController
from naspipe.engine.events import (
    BlockFinished,
    ContributionArrived,
    Event,
    InputArrived,
    LayerLoaded,
    LayerSaved,
    Priorities,
    SubnetAdmitted,
    Task,
    TaskKind,
    VersionArrived,
    WriteFinished,
)
from naspipe.plan.virtual_costs import Costs


class VirtualClock:
    """Runs callbacks in order of time; ties run in the order in which they were requested."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._asked, callback))
        self._asked += 1

    def run(self) -> None:
        while self._heap:
            self.now_ns, _, callback = heapq.heappop(self._heap)
            callback()

    def stop(self) -> None:
        """Drop all callbacks that were requested so far."""
        self._heap.clear()


class KnownPasses:
    """Tracks the probes of every stream; a step's other passes are known after the last one."""

    def __init__(self, steps: Steps, lengths: Sequence[int]) -> None:
        self._steps = steps
        self._ends = [length - 1 for length in lengths]
        self._through: Counter[tuple[int, int]] = Counter()
        """The number of probes that have a loss, by stream and step."""

    @property
    def first(self) -> int:
        return self._steps.probes

    def take(self, access: Access) -> int | None:
        """Return the new number of known passes if this access increases it, else None."""
        steps, layer = self._steps, access.layer
        is_end = layer.block == self._ends[layer.stream] and access.kind is AccessKind.FORWARD
        if not is_end or not steps.is_probe(access.sequence_id):
            return None
        step = steps.step(access.sequence_id)
        self._through[layer.stream, step] += 1
        if self._through[layer.stream, step] < steps.probes:
            return None
        del self._through[layer.stream, step]
        return (step + 1) * steps.passes + steps.probes


Admitted = tuple[Subnet, Partition, Priorities | None, bool]
"""What a stage receives when a subnet is admitted; the last item is True if it is trained."""

Admit = Callable[[StreamId, int], tuple[Subnet, Partition, Priorities | None] | Admitted]

Record = Callable[[Access], None]


class _CopyLane:
    """One direction between host and device; copies run one at a time, in the order of requests."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._free_ns = 0

    def copy(self, duration_ns: int, finished: Callable[[], None]) -> None:
        self._free_ns = max(self._free_ns, self._clock.now_ns) + duration_ns
        self._clock.after(self._free_ns - self._clock.now_ns, finished)


class SimulatedStage:
    """One compute lane: pending WRITEs first, then the next block of the current run.

    In addition, it has a lane of copies to the device and one back to host memory.
    """

    def __init__(
        self,
        controller: StageController,
        clock: VirtualClock,
        costs: Costs,
        admissions: Sequence[AdmissionWindow],
        admitted: Admit,
        record: Record,
    ) -> None:
        self.controller = controller
        self.peers: Sequence[SimulatedStage] = ()
        self._admissions = tuple(admissions)
        self._clock = clock
        self._costs = costs
        self._admitted = admitted
        self._record = record
        self._writes: deque[WriteLayer] = deque()
        self._run: deque[tuple[int, int]] = deque()
        self._unadmitted: deque[tuple[StreamId, int]] = deque()
        self._task: Task | None = None
        self._is_busy = False
        self._made: set[LayerId] = set()
        self._parcels = 0
        """Number of parcels sent or received since the last attempt to start an access."""
        self._lane_in, self._lane_out = _CopyLane(clock), _CopyLane(clock)

    def start(self, known: int | None = None) -> None:
        """Admit the first of the ``known`` subnets of every stream; None if all are known."""
        for number, admission in enumerate(self._admissions):
            opened = admission.open() if known is None else admission.learn(known)
            self._admit(StreamId(number), opened)

    def learn(self, stream: StreamId, known: int) -> None:
        self._admit(stream, self._admissions[stream].learn(known))

    @property
    def unfinished(self) -> str:
        """The first unfinished stream and its oldest subnet; empty if all are finished."""
        for number, admission in enumerate(self._admissions):
            if not admission.is_finished:
                return f"{number}.{admission.oldest}"
        return ""

    def receive(self, task: Task, upcoming: tuple[Task, ...] = (), name: InputName = CHAIN) -> None:
        self._admit(task.stream, self._admissions[task.stream].reach(task.sequence_id))
        self._tell(InputArrived(self._clock.now_ns, task, upcoming, name))

    def receive_parcel(self, push: PushVersion) -> None:
        self._parcels += 1
        self._tell(VersionArrived(self._clock.now_ns, push.layer, push.version, push.parcel))

    def receive_contribution(self, command: Contribute, sender: StageId) -> None:
        name, stream, first = command.exchange, command.stream, command.sequence_id
        self._admit(stream, self._admissions[stream].reach(first))
        self._tell(ContributionArrived(self._clock.now_ns, name, stream, first, sender))

    def _admit(self, stream: StreamId, sequence_ids: range) -> None:
        self._unadmitted.extend((stream, sequence_id) for sequence_id in sequence_ids)
        while self._unadmitted:
            admitted = self._admitted(*self._unadmitted.popleft())
            self._tell(SubnetAdmitted(self._clock.now_ns, *admitted))

    def _tell(self, event: Event) -> None:
        for command in self.controller.handle(event):
            self._carry_out(command)
        self._advance()

    def _carry_out(self, command: Command) -> None:
        match command:
            case RunTask(task):
                is_forward = task.kind is TaskKind.FORWARD
                kind = AccessKind.FORWARD if is_forward else AccessKind.BACKWARD
                self._task, number = task, task.sequence_id
                for layer, _, option in command.accesses():
                    work_ns = self._costs.access_ns(layer._replace(candidate=option), kind, number)
                    if layer not in self._made:
                        self._made.add(layer)
                        work_ns += self._costs.make_ns(layer)
                    self._run.append((layer.block, work_ns))
            case WriteLayer():
                self._writes.append(command)
            case SendOutput(receiver, upcoming, name):
                peer = self.peers[receiver.stage]
                if peer is not self:
                    delay_ns = self._costs.message_ns(receiver)
                    self._clock.after(delay_ns, partial(peer.receive, receiver, upcoming, name))
            case RequestField(task, field):
                receive = partial(self.receive, task, name=field_input(field))
                self._clock.after(self._costs.message_ns(task), receive)
            case Contribute(_, stream, first, receivers):
                sender = next(StageId(i) for i, peer in enumerate(self.peers) if peer is self)
                for stage in receivers:
                    told = Task(stream, first, TaskKind.BACKWARD, stage)
                    delay_ns = 0 if stage == sender else self._costs.message_ns(told)
                    receive = partial(self.peers[stage].receive_contribution, command, sender)
                    self._clock.after(delay_ns, receive)
            case PushVersion(layer, _, stage, parcel):
                self._parcels += 1
                receive = partial(self.peers[stage].receive_parcel, command)
                self._clock.after(self._costs.push_ns(layer, parcel), receive)
            case LoadLayer(layer):
                self._lane_in.copy(
                    self._costs.copy_ns(layer),
                    lambda: self._tell(LayerLoaded(self._clock.now_ns, layer)),
                )
            case SaveLayer(layer):
                self._lane_out.copy(
                    self._costs.copy_ns(layer),
                    lambda: self._tell(LayerSaved(self._clock.now_ns, layer)),
                )
            case RecordAccess(access):
                self._record(access)
            case RetireSubnet(stream, sequence_id):
                more = self._admissions[stream].retire(sequence_id)
                self._unadmitted.extend((stream, each) for each in more)
                self._clock.after(0, lambda: self._admit(stream, range(0)))

    def _advance(self) -> None:
        if self._is_busy:
            return
        between_ns = self._costs.between_ns(self._parcels)
        self._parcels = 0
        start_ns = self._clock.now_ns + between_ns
        if self._writes:
            write = self._writes.popleft()
            layer, number = write.layer, write.sequence_id
            if write.ends_step:
                write_ns = self._costs.access_ns(layer, AccessKind.WRITE, number)
            else:
                write_ns = self._costs.add_ns(layer, number)
            self._occupy(
                between_ns + write_ns,
                lambda: WriteFinished(self._clock.now_ns, layer, number, start_ns),
            )
        elif self._run and self._task is not None:
            task, (block, duration_ns) = self._task, self._run.popleft()
            self._occupy(
                between_ns + duration_ns,
                lambda: BlockFinished(self._clock.now_ns, task, block, start_ns),
            )

    def _occupy(self, duration_ns: int, finish: Callable[[], Event]) -> None:
        self._is_busy = True

        def finished() -> None:
            self._is_busy = False
            self._tell(finish())

        self._clock.after(duration_ns, finished)


def simulate(
    admitted: Admit,
    controllers: Sequence[StageController],
    costs: Costs,
    admissions: Callable[[], Sequence[AdmissionWindow]],
) -> list[list[Access]]:
    """Like :func:`simulate_into`; returns the accesses of each stage in the order of their ends."""
    stages: list[list[Access]] = [[] for _ in controllers]

    def record(access: Access) -> None:
        stages[access.stage].append(access)

    simulate_into(record, admitted, controllers, costs, admissions)
    return stages


def simulate_into(
    record: Record,
    admitted: Admit,
    controllers: Sequence[StageController],
    costs: Costs,
    admissions: Callable[[], Sequence[AdmissionWindow]],
    clock: VirtualClock | None = None,
    known: KnownPasses | None = None,
) -> None:
    """Run every stream to its end and record every access as it ends.

    Args:
        record: called with each access.
        admitted: called for every sequence ID of every stream.
        controllers: the controller of each stage.
        costs: the duration of everything.
        admissions: called once per stage: which subnets of each stream may be under way.
        clock: a new clock, for costs that depend on the time, such as those of a busy link.
        known: which subnets are known when; None if all are known from the beginning.
    """
    clock = clock or VirtualClock()

    def recorded(access: Access) -> None:
        """Record an access, and have the launcher inform all stages of the newly known subnets."""
        record(access)
        if known is not None and (count := known.take(access)) is not None:
            stream = access.layer.stream
            told = Task(stream, access.sequence_id, TaskKind.FORWARD, access.stage)
            clock.after(2 * costs.message_ns(told), partial(learn, stream, count))

    def learn(stream: StreamId, count: int) -> None:
        for stage in stages:  # all stages are informed before any of them sends a subnet on
            stage.learn(stream, count)

    stages = [
        SimulatedStage(
            controller, clock, costs, admissions(), admitted, record if known is None else recorded
        )
        for controller in controllers
    ]
    for stage in stages:
        stage.peers = stages
    for stage in stages:
        stage.start(known.first if known else None)
    clock.run()
    for number, stage in enumerate(stages):
        if stage.unfinished:
            raise InvariantError(
                f"stage {StageId(number)} stopped before subnet {stage.unfinished} was finished: "
                + "; ".join(stage.controller.unfinished[:3])
            )
