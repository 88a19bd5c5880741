"""The controller of one stage: it takes events and returns commands.

Theory of operation
-------------------

The controller reads no clock, starts no thread, touches no tensor and opens no file. Everything it
knows arrived in an event, in the order of the events. The worker process and the simulator drive
the same class, so the simulator runs the real schedule instead of a model of it. Replaying the
events of a run yields the same commands.

**States of a subnet on a stage.** A subnet is *admitted* (``SubnetAdmitted``; in the order of
sequence IDs, on all stages alike). Each of its layers then has a ticket: the version that it reads
and the version that its update follows. Its forward is *ready* when its input has arrived and the
versions that its blocks read exist here; a backward is ready when its gradient has arrived. Ready
tasks are ordered by the dispatch order, and one task *runs* at a time. A task runs block by block,
because a version may exist for the first blocks only, and layers may not all be on the device. A
finished backward of a block makes its update *owed*; the update is *due* when it is next in the
order of the layer's updates and no gate holds it back. The subnet *retires* when no work is left
for it; ``Progress.unsettled`` counts the remaining items.

**Invariants.**

- Results depend on tickets alone. Tickets depend on the order of admission, never on the order of
  arrival, so timing affects when something runs but not what it computes.
- Updates of a layer are applied in sequence order. Anything else may be reordered.
- A layer is pinned on the device from the command that uses it until the event that reports
  completion.
- Every choice is made by a complete key that ends in a sequence ID, so that ties are deterministic.

**Why this way.** Each stage decides from its own events whatever it can. Stages do not query each
other, and there is no central scheduler that every decision would have to travel to: stages agree
because each derives where layers and gradients go from the same admissions (``History``,
``Transfers``). Each concern is a part with one owner: versions (``VersionBook``), what a task waits
for (``Clearance``, ``Taps``), order (``ReadyTasks``), updates (``Writes``, ``Gates``), layers that
move (``Transfers``), checkpoints (``Cuts``), the device (``Residency``). The controller passes each
event to the parts that it concerns, and then decides in this order: due updates, the next blocks,
what to load and save.

**What was tried and rejected.** Comparing each subnet with all earlier ones that are under way (as
the paper does) costs time that grows with the window; tickets cost the same for every subnet.
Running whole tasks instead of blocks makes each task wait for the last of its layers. Reporting
each block to the controller immediately costs a call per block, so the worker does so only if a
finished block can cause further commands (``follows_blocks``).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from naspipe.config.errors import InvariantError
from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import CHAIN, CREDIT, PLAIN, InputName, Wiring
from naspipe.engine.commands import (
    Command,
    DropVersion,
    RecordAccess,
    RetireSubnet,
    RunTask,
    SendOutput,
)
from naspipe.engine.cuts import Cuts
from naspipe.engine.events import (
    BlockFinished,
    ContributionArrived,
    CutAdmitted,
    Event,
    InputArrived,
    LayerLoaded,
    LayerSaved,
    StageIdle,
    StreamResumed,
    SubnetAdmitted,
    Task,
    TaskKind,
    VersionArrived,
    WriteFinished,
)
from naspipe.engine.gates import Gates, WriteGate
from naspipe.engine.history import History
from naspipe.engine.inputs import Clearance, Sent, Taps
from naspipe.engine.mirroring import Transfers
from naspipe.engine.orders import ReadyTasks
from naspipe.engine.policies import SyncPolicy
from naspipe.engine.predictor import Forecast, Predictor
from naspipe.engine.residency import Residency
from naspipe.engine.versions import VersionBook
from naspipe.engine.work import Progress, Work, begin_subnet
from naspipe.engine.writes import Writes

_ANNOUNCED = 2
"""Number of upcoming tasks that a stage announces to another one with each output."""


def hand_on(work: Work, queue: Sequence[tuple[tuple[Any, ...], Work]]) -> SendOutput | None:
    """Send a finished task's output along the chain, to the stage of the next block.

    Return None if the chain, or the part that a backward goes through, ends on this stage.
    ``queue`` holds the tasks that run after it.
    """
    receiver = work.receiver
    if receiver is None:
        return None
    following = (
        (key, each.receiver)
        for key, each in queue
        if each.receiver is not None
        and (each.receiver.stage, each.task.kind) == (receiver.stage, receiver.kind)
    )
    upcoming = heapq.nsmallest(_ANNOUNCED, following)
    return SendOutput(receiver, tuple(task for _, task in upcoming))


class Stalls:
    """Measures how long a stage waits between wanting to begin and being able to."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._last_ns = 0

    @property
    def is_stalled(self) -> bool:
        return self._since_ns is not None

    def begin(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns

    def end(self, now_ns: int) -> None:
        if self._since_ns is not None:
            self._last_ns = max(1, now_ns - self._since_ns)
            self._since_ns = None

    def take(self) -> int:
        """Return the duration of the last wait in nanoseconds and reset it; 0 if there was none."""
        last_ns, self._last_ns = self._last_ns, 0
        return last_ns


class StageController:
    """Decides what one stage runs, writes, sends, loads and records.

    Args:
        stage: which stage of every subnet's partition this is.
        history: the history of the admitted subnets; shared by the stages of one process.
        policy: see :mod:`naspipe.engine`.
        ready: the tasks that could run now, in dispatch order.
        residency: see :mod:`naspipe.engine`.
        gates: what the WRITEs of a step wait for, in addition to the order of WRITEs.
        wiring: the completed wiring.
        splits: whether backwards may be split, so that a WRITE first computes the gradients that
            one has left.
    """

    def __init__(
        self,
        stage: StageId,
        history: History,
        policy: SyncPolicy,
        ready: ReadyTasks,
        residency: Residency,
        gates: Sequence[WriteGate] = (),
        wiring: Wiring = PLAIN,
        splits: bool = False,
    ) -> None:
        self._stage = stage
        self._book = VersionBook(history.rules, policy, history.uses)
        self._residency = residency
        self._whereabouts = history.whereabouts
        self._cuts = Cuts(stage, self._book, self._whereabouts)
        self._gates = Gates(gates)
        self._writes = Writes(self._book, residency, self._gates, policy.steps, ready.order, splits)
        self._subnets: dict[tuple[StreamId, SequenceId], Progress] = {}
        self._ready = ready
        self._taps = Taps(stage, wiring, policy.steps)
        self._clearance = Clearance(
            self._book, policy, self._whereabouts.has_buffers, wiring, self._taps
        )
        self._transfers = Transfers(
            stage,
            self._whereabouts,
            self._book,
            residency,
            self._writes,
            self._gates,
            self._clearance,
        )
        self._wiring = wiring
        self._predictor = Predictor(history.rules, ready.order)
        self._joins = bool(wiring.taps) or policy.steps.passes > 1  # whether others wait for blocks
        self.follows_blocks = self._joins or residency.limits_memory
        """True if a finished block can cause commands before its run is over, so that each block
        has to be reported immediately. Otherwise other tasks wait only for the output of the whole
        run, and WRITEs begin after it."""
        self._run: deque[tuple[LayerId, Version]] = deque()
        """The rest of the run, from the first block that has not been commanded yet."""
        self._commanded = 0  # blocks commanded and not finished
        self._changes = 0  # counts what may change the forecast
        self._last: Work | None = None  # the task that ran last
        self._stalls = Stalls()

    def handle(self, event: Event) -> list[Command]:
        """Process one event; returns the commands to carry out, in order."""
        commands: list[Command] = []
        match event:
            case BlockFinished():
                self._on_block(event, commands)
            case WriteFinished():
                self._on_write(event, commands)
            case InputArrived():
                if event.name == CHAIN:
                    self._predictor.arrive(event.task, event.upcoming)
                self._arrive(event.task, event.name, commands)
            case SubnetAdmitted():
                self._on_admitted(event, commands)
            case VersionArrived():
                led_to, clear = self._transfers.arrive(event)
                commands += led_to
                self._wake(clear)
            case ContributionArrived():
                for progress in self._gates.arrive(event):
                    commands += self._transfers.release(progress)
                    self._settle(progress, commands)
            case LayerLoaded():
                self._residency.on_loaded(event.layer)
            case LayerSaved():
                self._residency.on_saved(event.layer)
                commands += self._transfers.ready(event.layer)
            case CutAdmitted():
                commands += self._cuts.admit(event, self._subnets)
            case StageIdle():
                commands += self._cuts.use_idle_time()
            case StreamResumed():
                self._book.resume(event.stream, event.first, event.layers)
                self._whereabouts.resume(event.layers)
        if self._writes.are_due and (self._commanded == 0 or self.follows_blocks):
            commands += (begun := self._writes.begin(self._ready.first_key))
            if begun:
                self._stalls.end(event.time_ns)
        if self._commanded == 0 and not self._writes.are_under_way:
            self._advance(event.time_ns, commands)
        self._changes += self._ready.running is None
        news = (self._changes, *self._writes.due)
        commands += self._residency.plan(self._look_ahead, self._stalls.is_stalled, news)
        return self._cuts.guard(commands)

    @property
    def is_idle_work(self) -> bool:
        """True if :class:`StageIdle` would have any effect."""
        return self._cuts.is_idle_work

    @property
    def owes_layers(self) -> bool:
        """True if something that another stage needs has not been sent yet."""
        return self._transfers.are_pending

    @property
    def unfinished(self) -> list[str]:
        """The subnets under way and what each waits for, oldest first; for error messages."""
        return [progress.explain() for _, progress in sorted(self._subnets.items())]

    def _look_ahead(self) -> Forecast:
        subnets, running = self._subnets.values(), self._ready.running
        return self._predictor.forecast(self._writes.due, subnets, running, self._changes)

    def _advance(self, now_ns: int, commands: list[Command]) -> None:
        """Continue the run or begin the next one, as far as the layers are on the device."""
        work = self._ready.running
        if work is None:
            work = self._ready.begin()
            if work is None:
                if self._writes.are_due:
                    self._stalls.begin(now_ns)
                return
            if work.task.kind is TaskKind.FORWARD:
                self._book.begin(work.tickets)
            self._run.extend(work.clear_reads(self._ready.order.max_run))
            self._changes, self._last = self._changes + (work is not self._last), work
        commanded = self._residency.acquire([layer for layer, _ in self._run])
        if commanded == 0:
            self._stalls.begin(now_ns)
            return
        self._stalls.end(now_ns)
        reads = tuple(self._run.popleft() for _ in range(commanded))
        self._commanded = commanded
        options = work.subnet.options(layer for layer, _ in reads)
        commands.append(RunTask(work.task, reads, options))

    def _on_admitted(self, event: SubnetAdmitted, commands: list[Command]) -> None:
        subnet, blocks = event.subnet, event.partition.blocks(self._stage)
        tickets = self._book.admit(subnet, blocks)
        sections = self._wiring.of(subnet.stream).sections(event.partition.num_blocks)
        progress = begin_subnet(event, self._stage, tickets, sections)
        self._subnets[subnet.stream, subnet.sequence_id] = progress
        self._clearance.admit(progress)
        self._predictor.admit(progress)
        self._changes += 1
        commands += self._clearance.admit_inputs(progress, blocks)
        self._ready.admit(progress)
        self._wake((progress.forward,))
        self._hand_over(self._taps.admit(progress), commands)
        pushes, clear = self._transfers.admit(progress, event.is_trained)
        commands += pushes
        self._wake(clear)
        self._settle(progress, commands)

    def _arrive(self, task: Task, name: InputName, commands: list[Command]) -> None:
        progress = self._progress(task.stream, task.sequence_id)
        self._changes += 1
        self._wake(self._clearance.arrive_input(progress, task, name))
        if name.startswith(CREDIT):  # a guest has finished on its own stage
            self._settle(progress, commands)

    def _hand_over(self, outputs: Iterable[Sent], commands: list[Command]) -> None:
        """Send tapped outputs and credits; one for this stage itself arrives immediately."""
        for source, output in outputs:
            if output:
                commands.append(output)
                if output.receiver.stage == self._stage:
                    self._arrive(output.receiver, output.name, commands)
            if source:
                self._settle(source, commands)

    def _on_block(self, event: BlockFinished, commands: list[Command]) -> None:
        task, block = event.task, event.block
        work = self._ready.finish(task, block)
        progress = self._progress(task.stream, task.sequence_id)
        self._commanded -= 1
        if self._commanded == 0 and not self._run:
            self._ready.running = None
            if work.todo:
                self._changes += not self._ready.offer(work)  # the same task usually continues
            elif output := hand_on(work, self._ready.queue):
                commands.append(output)
        if is_forward := task.kind is TaskKind.FORWARD:
            begun = [
                backward
                for backward in progress.backwards.values()
                if backward.begins_here and backward.todo[-1:] == [block]
            ]
            for backward in begun:
                backward.missing.discard(CHAIN)
            self._wake(begun)
        ticket = progress.tickets[block]
        kind = AccessKind.FORWARD if is_forward else AccessKind.BACKWARD
        self._residency.release(ticket.layer, kind)
        is_last_use = not (is_forward and progress.backwards)
        if is_last_use:
            self._predictor.used(ticket.layer)
            for version in self._book.release(ticket.layer, ticket.reads):
                commands.append(DropVersion(ticket.layer, version))
            if ticket.is_writer:
                commands += self._writes.owe(progress, block)
        times = (event.start_ns, event.time_ns, self._stalls.take())
        who = (ticket.layer, task.sequence_id)
        commands.append(RecordAccess(Access(*who, kind, ticket.reads, self._stage, *times)))
        if not is_forward:
            commands += self._transfers.through(progress)
        elif self._joins:
            self._wake(self._clearance.passed(task.stream, task.sequence_id, block))
            commands += self._transfers.passed(progress, block)
            self._hand_over(self._taps.passed(progress, block), commands)
        if is_last_use and not work.todo:
            self._settle(progress, commands)

    def _on_write(self, event: WriteFinished, commands: list[Command]) -> None:
        layer, version = event.layer, Version(event.sequence_id)
        progress = self._progress(layer.stream, event.sequence_id)
        ticket = self._writes.finish(event, progress)
        for dropped in self._book.write(layer, ticket, version):
            if dropped != ticket.base:
                commands.append(DropVersion(layer, dropped))
        self._wake(self._clearance.written(layer, version))
        self._cuts.wrote(layer, version)
        commands += self._transfers.ready(layer)
        commands += self._writes.wrote(layer, version)
        who = (layer, event.sequence_id, AccessKind.WRITE, version, self._stage)
        how = (event.start_ns, event.time_ns, 0, event.digest, event.owed_ns)
        commands.append(RecordAccess(Access(*who, *how)))
        self._settle(progress, commands)

    def _wake(self, clear: Iterable[Work]) -> None:
        for work in clear:
            self._ready.offer(work)
            self._changes += 1

    def _settle(self, progress: Progress, commands: list[Command]) -> None:
        """Count one item as done; the last one retires the subnet."""
        progress.unsettled -= 1
        if progress.unsettled == 0:
            subnet = progress.subnet
            del self._subnets[subnet.stream, subnet.sequence_id]
            self._predictor.retire(progress)
            self._changes += 1
            commands.append(RetireSubnet(subnet.stream, subnet.sequence_id))
            self._hand_over(self._taps.retired(progress), commands)

    def _progress(self, stream: StreamId, sequence_id: SequenceId) -> Progress:
        progress = self._subnets.get((stream, sequence_id))
        if progress is None:
            raise InvariantError(
                f"stage {self._stage}: subnet {stream}.{sequence_id} is not under way here"
            )
        return progress
