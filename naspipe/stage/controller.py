"""The controller of one stage: events in, commands out, and nothing else.

It reads no clock, starts no thread, touches no tensor and opens no file, so the runtime
and the simulator drive the same class and their schedules can be compared line by line.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Any

from naspipe.core.access import Access, AccessKind
from naspipe.core.commands import Command, DropVersion, RecordAccess, RetireSubnet, RunTask
from naspipe.core.errors import InvariantError
from naspipe.core.events import (
    BlockFinished,
    CutAdmitted,
    Event,
    InputArrived,
    LayerLoaded,
    LayerSaved,
    NormsArrived,
    StageIdle,
    StreamResumed,
    SubnetAdmitted,
    VersionArrived,
    WriteFinished,
)
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.core.ports import DispatchOrder, Residency, SyncPolicy
from naspipe.core.task import Task, TaskKind
from naspipe.schedule.history import History
from naspipe.schedule.versions import VersionBook
from naspipe.stage.clearance import Clearance
from naspipe.stage.cuts import Cuts
from naspipe.stage.gates import WriteGate
from naspipe.stage.mirroring import Departures
from naspipe.stage.outputs import send_output
from naspipe.stage.predictor import Predictor
from naspipe.stage.stalls import Stalls
from naspipe.stage.work import Progress, Work
from naspipe.stage.writes import Writes


class StageController:
    """Decides what one stage runs, writes, sends, loads and records.

    Args:
        stage: which stage of every subnet's partition this is.
        history: of the subnets that are admitted; the stages of one process share it.
        policy: which version an access asks for.
        order: which of several clear tasks runs first.
        residency: what is on the device.
        gate: when the WRITEs of a step may begin.
        starts_partly_clear: begin a forward before all of the stage's blocks are clear.
    """

    def __init__(
        self,
        stage: StageId,
        history: History,
        policy: SyncPolicy,
        order: DispatchOrder,
        residency: Residency,
        gate: WriteGate,
        starts_partly_clear: bool = False,
    ) -> None:
        self._stage = stage
        self._book = VersionBook(history.rules, policy, history.uses)
        self._order = order
        self._residency = residency
        self._whereabouts = history.whereabouts
        self._departures = Departures(stage, self._whereabouts, self._book, residency)
        self._cuts = Cuts(stage, self._book, self._whereabouts)
        self._writes = Writes(self._book, residency)
        self._starts_partly_clear = starts_partly_clear
        self._subnets: dict[tuple[StreamId, SequenceId], Progress] = {}
        self._queue: list[tuple[tuple[Any, ...], Work]] = []
        self._clearance = Clearance(self._book, policy)
        self._gate = gate
        self._predictor = Predictor(history.rules, order)
        self._running: Work | None = None
        self._run: deque[tuple[LayerId, Version]] = deque()
        """What is left of the run, from the first block that was not commanded yet."""
        self._commanded = 0  # blocks commanded and not finished
        self._changes = 0  # counts what may change the forecast
        self._stalls = Stalls()

    def handle(self, event: Event) -> list[Command]:
        """Take one event; returns the commands to carry out, in order.

        Raises:
            InvariantError: when the event does not fit the state: a bug, never bad luck.
        """
        commands: list[Command] = []
        match event:
            case BlockFinished():
                self._on_block(event, commands)
            case WriteFinished():
                self._on_write(event, commands)
            case InputArrived():
                self._on_input(event)
            case SubnetAdmitted():
                self._on_admitted(event, commands)
            case VersionArrived():
                self._book.arrive(event.layer, event.version)
                commands += self._residency.arrive(event.layer)
                self._wake(self._clearance.written(event.layer, event.version))
            case NormsArrived():
                self._on_norms(event, commands)
            case LayerLoaded():
                self._residency.on_loaded(event.layer)
            case LayerSaved():
                self._residency.on_saved(event.layer)
                commands += self._departures.ready(event.layer)
            case CutAdmitted():
                commands += self._cuts.admit(event, self._subnets)
            case StageIdle():
                commands += self._cuts.use_idle_time()
            case StreamResumed():
                self._book.resume(event.stream, event.first, event.layers)
                self._whereabouts.resume(event.layers)
        if self._commanded == 0 and not self._writes.are_under_way:
            self._advance(event.time_ns, commands)
        likely = self._predictor.forecast(self._subnets.values(), self._running, self._changes)
        soon = chain(self._writes.due, likely)
        commands += self._residency.plan(soon, self._stalls.is_stalled, self._changes)
        return self._cuts.guard(commands)

    @property
    def is_idle_work(self) -> bool:
        """Whether :class:`StageIdle` would lead to something."""
        return self._cuts.is_idle_work

    @property
    def unfinished(self) -> list[str]:
        """What is under way and what it waits for, oldest first: for error messages."""
        return [progress.explain() for _, progress in sorted(self._subnets.items())]

    def _advance(self, now_ns: int, commands: list[Command]) -> None:
        """Go on with the run, or begin the next one, as far as its layers are on the device."""
        if due := self._writes.resume():
            commands += due
            self._stalls.end(now_ns)
            return
        if self._running is None:
            if not self._queue:
                if any(self._writes.due):
                    self._stalls.begin(now_ns)
                return
            _, work = heapq.heappop(self._queue)
            work.is_queued = False
            self._running = work
            if work.task.kind is TaskKind.FORWARD:
                self._book.begin(work.tickets)
            self._run.extend(work.clear_reads(self._order.max_run))
            self._changes += 1
        commanded = self._residency.acquire([layer for layer, _ in self._run])
        if commanded == 0:
            self._stalls.begin(now_ns)
            return
        self._stalls.end(now_ns)
        reads = tuple(self._run.popleft() for _ in range(commanded))
        self._commanded = commanded
        commands.append(RunTask(self._running.task, reads))

    def _on_admitted(self, event: SubnetAdmitted, commands: list[Command]) -> None:
        subnet, blocks = event.subnet, event.partition.blocks(self._stage)
        tickets = self._book.admit(subnet, blocks)
        task = Task(subnet.stream, subnet.sequence_id, TaskKind.FORWARD, self._stage)
        forward = Work(task, tickets, list(reversed(blocks)))
        back = task._replace(kind=TaskKind.BACKWARD)
        backward = Work(back, tickets, list(blocks) if event.is_trained else [], forward.unclear)
        if event.priorities:
            forward.priorities, backward.priorities = event.priorities
        unwritten = 1 + sum(ticket.is_writer for ticket in tickets.values())
        progress = Progress(
            subnet, event.partition, tickets, forward, backward, unwritten, event.is_trained
        )
        self._clearance.admit(progress)
        if event.is_trained:
            self._gate.admit(progress)
        self._subnets[subnet.stream, subnet.sequence_id] = progress
        self._predictor.admit(progress)
        self._changes += 1
        if blocks.start == 0:
            forward.has_input = True
            self._enqueue(forward)
        commands += self._departures.admit(subnet, event.partition)

    def _on_input(self, event: InputArrived) -> None:
        task = event.task
        progress = self._progress(task.stream, task.sequence_id)
        work = progress.forward if task.kind is TaskKind.FORWARD else progress.backward
        if task != work.task:
            raise InvariantError(f"{task}: its input arrived at the task {work.task}")
        if work.has_input:
            raise InvariantError(f"{task}: its input arrived twice")
        work.has_input = True
        self._predictor.arrive(task, event.upcoming)
        self._changes += 1
        self._enqueue(work)

    def _on_block(self, event: BlockFinished, commands: list[Command]) -> None:
        task, block = event.task, event.block
        work = self._running
        if work is None or work.task != task or not work.todo or work.todo[-1] != block:
            raise InvariantError(f"{task}: block {block} finished, but it was not running")
        progress = self._progress(task.stream, task.sequence_id)
        work.todo.pop()
        self._commanded -= 1
        if self._commanded == 0 and not self._run:
            self._running = None
            if work.todo:
                self._enqueue(work)
            else:
                self._on_task_finished(progress, work, commands)
        ticket = progress.tickets[block]
        kind = AccessKind(task.kind.value)
        self._residency.release(ticket.layer, kind)
        is_last_use = kind is AccessKind.BACKWARD or not progress.is_trained
        if is_last_use:
            for version in self._book.release(ticket.layer, ticket.reads):
                commands.append(DropVersion(ticket.layer, version))
            if ticket.is_writer:
                commands += self._writes.owe(progress, block)
        times = (event.start_ns, event.time_ns, self._stalls.take())
        who = (ticket.layer, task.sequence_id)
        commands.append(RecordAccess(Access(*who, kind, ticket.reads, self._stage, *times)))
        if kind is AccessKind.FORWARD:
            self._wake(self._clearance.passed(task, block))
        elif not work.todo:
            commands += self._gate.finish(progress)
        if is_last_use and not work.todo:
            self._settle(progress, commands)

    def _on_task_finished(self, progress: Progress, work: Work, commands: list[Command]) -> None:
        """Hand the output on: to the next stage, to the stage before, or to our own backward."""
        output = send_output(progress, work.task, self._queue)
        if output is not None:
            commands.append(output)
        elif work.task.kind is TaskKind.FORWARD and progress.is_trained:
            progress.backward.has_input = True
            self._enqueue(progress.backward)

    def _on_write(self, event: WriteFinished, commands: list[Command]) -> None:
        layer, version = event.layer, Version(event.sequence_id)
        progress = self._progress(layer.stream, event.sequence_id)
        ticket = self._writes.finish(event, progress)
        for dropped in self._book.write(layer, ticket, version):
            if dropped != ticket.base:
                commands.append(DropVersion(layer, dropped))
        self._wake(self._clearance.written(layer, version))
        self._cuts.wrote(layer, version)
        commands += self._departures.ready(layer)
        commands += self._writes.follow(layer)
        who = (layer, event.sequence_id, AccessKind.WRITE, version, self._stage)
        commands.append(RecordAccess(Access(*who, event.start_ns, event.time_ns, 0, event.digest)))
        self._settle(progress, commands)

    def _on_norms(self, event: NormsArrived, commands: list[Command]) -> None:
        for progress in self._gate.arrive(event):
            commands += self._writes.release(progress)
            self._settle(progress, commands)

    def _wake(self, clear: Iterable[Work]) -> None:
        for work in clear:
            self._enqueue(work)
            self._changes += 1

    def _settle(self, progress: Progress, commands: list[Command]) -> None:
        """Count one thing done; the last of them retires the subnet."""
        progress.unwritten -= 1
        if progress.unwritten == 0:
            subnet = progress.subnet
            del self._subnets[subnet.stream, subnet.sequence_id]
            self._predictor.retire(progress)
            self._changes += 1
            commands.append(RetireSubnet(subnet.stream, subnet.sequence_id))

    def _enqueue(self, work: Work) -> None:
        """Queue a task that has its input and whose next blocks are clear."""
        if work.is_queued or not work.has_input or not work.todo or work is self._running:
            return
        if work.todo[-1] in work.unclear or (work.unclear and not self._starts_partly_clear):
            return
        work.is_queued = True
        self._changes += 1
        heapq.heappush(self._queue, (self._order.key(work.task, work.priority), work))

    def _progress(self, stream: StreamId, sequence_id: SequenceId) -> Progress:
        progress = self._subnets.get((stream, sequence_id))
        if progress is None:
            raise InvariantError(
                f"stage {self._stage}: subnet {stream}.{sequence_id} is not under way here"
            )
        return progress
