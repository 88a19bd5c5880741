"""The controller of one stage: events in, commands out, and nothing else.

It reads no clock, starts no thread, touches no tensor and opens no file, so the runtime
and the simulator drive the same class and their schedules can be compared line by line.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from naspipe.core.access import Access, AccessKind
from naspipe.core.commands import (
    Command,
    DropVersion,
    RecordAccess,
    RetireSubnet,
    RunTask,
    SendOutput,
    WriteLayer,
)
from naspipe.core.errors import InvariantError
from naspipe.core.events import BlockFinished, Event, InputArrived, SubnetAdmitted, WriteFinished
from naspipe.core.ids import LayerId, PassId, SequenceId, StageId, StreamId, Version
from naspipe.core.partition import Partition
from naspipe.core.ports import DispatchOrder, SyncPolicy
from naspipe.core.rules import Rule
from naspipe.core.subnet import Subnet
from naspipe.core.task import Task, TaskKind
from naspipe.schedule.versions import Ticket, VersionBook

_FIRST_PASS = PassId(0)


@dataclass(slots=True)
class _Work:
    """One task's progress: blocks not yet run, and those whose version does not exist yet."""

    task: Task
    todo: list[int]
    unclear: set[int]
    priorities: tuple[int, ...] = ()
    """By block of the chain; empty where the order asks for none."""
    has_input: bool = False
    is_queued: bool = False


@dataclass(slots=True)
class _Progress:
    """One subnet on this stage."""

    subnet: Subnet
    partition: Partition
    tickets: dict[int, Ticket]
    forward: _Work
    backward: _Work
    unwritten: int
    """WRITEs still owed, plus one until the backward is through."""
    writing: set[int] = field(default_factory=set)
    """Blocks whose WRITE was commanded and has not finished."""


class StageController:
    """Decides what one stage runs, writes, sends and records.

    Args:
        stage: which stage of every subnet's partition this is.
        rules: the rule of each block of the chain.
        policy: which version an access asks for.
        order: which of several clear tasks runs first.
        starts_partly_clear: run a forward up to its first block that is not clear, instead
            of waiting until all of the stage's blocks are (the paper's rule).
    """

    def __init__(
        self,
        stage: StageId,
        rules: Sequence[Rule],
        policy: SyncPolicy,
        order: DispatchOrder,
        starts_partly_clear: bool = False,
    ) -> None:
        self._stage = stage
        self._book = VersionBook(rules, policy)
        self._order = order
        self._starts_partly_clear = starts_partly_clear
        self._subnets: dict[tuple[StreamId, SequenceId], _Progress] = {}
        self._queue: list[tuple[tuple[Any, ...], _Work]] = []
        self._readers: dict[tuple[LayerId, Version], list[tuple[_Work, int]]] = {}
        self._writers: dict[tuple[LayerId, Version], tuple[_Progress, int]] = {}
        self._running: _Work | None = None
        self._run_left = 0
        self._writes_under_way = 0

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
                self._on_input(event.task)
            case SubnetAdmitted():
                self._on_admitted(event)
        if self._running is None and self._writes_under_way == 0 and self._queue:
            commands.append(self._dispatch())
        return commands

    @property
    def unfinished(self) -> list[str]:
        """What is under way and what it waits for, oldest first: for error messages."""
        return [self._explain(progress) for _, progress in sorted(self._subnets.items())]

    def _on_admitted(self, event: SubnetAdmitted) -> None:
        subnet, blocks = event.subnet, event.partition.blocks(self._stage)
        tickets = self._book.admit(subnet, blocks)
        task = Task(subnet.stream, subnet.sequence_id, _FIRST_PASS, TaskKind.FORWARD, self._stage)
        urgent = event.priorities
        forward = _Work(task, list(reversed(blocks)), set(), urgent.forward if urgent else ())
        for block, ticket in tickets.items():
            if not self._book.exists(ticket.layer, ticket.reads):
                forward.unclear.add(block)
                self._readers.setdefault((ticket.layer, ticket.reads), []).append((forward, block))
        backward = _Work(
            task._replace(kind=TaskKind.BACKWARD),
            list(blocks),
            set(),
            urgent.backward if urgent else (),
        )
        unwritten = 1 + sum(ticket.is_writer for ticket in tickets.values())
        self._subnets[subnet.stream, subnet.sequence_id] = _Progress(
            subnet, event.partition, tickets, forward, backward, unwritten
        )
        if blocks.start == 0:
            forward.has_input = True
            self._enqueue(forward)

    def _on_input(self, task: Task) -> None:
        progress = self._progress(task.stream, task.sequence_id)
        work = progress.forward if task.kind is TaskKind.FORWARD else progress.backward
        if task != work.task:
            raise InvariantError(f"{task}: its input arrived at the task {work.task}")
        if work.has_input:
            raise InvariantError(f"{task}: its input arrived twice")
        work.has_input = True
        self._enqueue(work)

    def _on_block(self, event: BlockFinished, commands: list[Command]) -> None:
        task, block = event.task, event.block
        work = self._running
        if work is None or work.task != task or not work.todo or work.todo[-1] != block:
            raise InvariantError(f"{task}: block {block} finished, but it was not running")
        progress = self._progress(task.stream, task.sequence_id)
        work.todo.pop()
        self._run_left -= 1
        if self._run_left == 0:
            self._running = None
            if work.todo:
                self._enqueue(work)
            else:
                self._on_task_finished(progress, work, commands)
        ticket = progress.tickets[block]
        if task.kind is TaskKind.BACKWARD:
            for version in self._book.release(ticket.layer, ticket.reads):
                commands.append(DropVersion(ticket.layer, version))
            if ticket.is_writer:
                self._write_or_wait(progress, block, commands)
        kind = AccessKind.FORWARD if task.kind is TaskKind.FORWARD else AccessKind.BACKWARD
        commands.append(
            RecordAccess(
                Access(
                    ticket.layer, task.sequence_id, task.pass_id, kind, ticket.reads,
                    self._stage, event.start_ns, event.time_ns, event.is_hit,
                )
            )
        )  # fmt: skip
        if task.kind is TaskKind.BACKWARD and not work.todo:
            self._settle(progress, commands)

    def _on_task_finished(self, progress: _Progress, work: _Work, commands: list[Command]) -> None:
        """Hand the output on: to the next stage, to the stage before, or to our own backward."""
        task, partition = work.task, progress.partition
        blocks = partition.blocks(self._stage)
        if task.kind is TaskKind.BACKWARD:
            if blocks.start > 0:
                commands.append(SendOutput(task.at(partition.stage_of(blocks.start - 1))))
        elif blocks.stop < partition.num_blocks:
            commands.append(SendOutput(task.at(partition.stage_of(blocks.stop))))
        else:
            progress.backward.has_input = True
            self._enqueue(progress.backward)

    def _write_or_wait(self, progress: _Progress, block: int, commands: list[Command]) -> None:
        ticket = progress.tickets[block]
        if not self._book.is_newest(ticket.layer, ticket.base):
            self._writers[ticket.layer, ticket.base] = (progress, block)
            return
        self._writes_under_way += 1
        progress.writing.add(block)
        commands.append(
            WriteLayer(
                ticket.layer,
                progress.subnet.sequence_id,
                ticket.base,
                self._book.keeps(ticket.layer, ticket.base),
            )
        )

    def _on_write(self, event: WriteFinished, commands: list[Command]) -> None:
        layer, version = event.layer, Version(event.sequence_id)
        progress = self._progress(layer.stream, event.sequence_id)
        ticket = progress.tickets.get(layer.block)
        if ticket is None or ticket.layer != layer or layer.block not in progress.writing:
            raise InvariantError(f"layer {layer}: WRITE {version} finished, but was not under way")
        progress.writing.remove(layer.block)
        self._writes_under_way -= 1
        for dropped in self._book.write(layer, ticket, version):
            if dropped != ticket.base:
                commands.append(DropVersion(layer, dropped))
        for work, block in self._readers.pop((layer, version), ()):
            work.unclear.discard(block)
            self._enqueue(work)
        if follower := self._writers.pop((layer, version), None):
            self._write_or_wait(*follower, commands)
        commands.append(
            RecordAccess(
                Access(
                    layer, event.sequence_id, _FIRST_PASS, AccessKind.WRITE, version,
                    self._stage, event.start_ns, event.time_ns, True, event.digest,
                )
            )
        )  # fmt: skip
        self._settle(progress, commands)

    def _settle(self, progress: _Progress, commands: list[Command]) -> None:
        """Count one thing done; the last of them retires the subnet."""
        progress.unwritten -= 1
        if progress.unwritten == 0:
            subnet = progress.subnet
            del self._subnets[subnet.stream, subnet.sequence_id]
            commands.append(RetireSubnet(subnet.stream, subnet.sequence_id))

    def _enqueue(self, work: _Work) -> None:
        """Queue a task that has its input and whose next blocks are clear."""
        if work.is_queued or not work.has_input or not work.todo or work is self._running:
            return
        if work.todo[-1] in work.unclear or (work.unclear and not self._starts_partly_clear):
            return
        work.is_queued = True
        priority = work.priorities[work.todo[-1]] if work.priorities else 0
        heapq.heappush(self._queue, (self._order.key(work.task, priority), work))

    def _dispatch(self) -> RunTask:
        _, work = heapq.heappop(self._queue)
        work.is_queued = False
        tickets = self._progress(work.task.stream, work.task.sequence_id).tickets
        run = []
        for block in work.todo[: -(self._order.max_run or len(work.todo)) - 1 : -1]:
            if block in work.unclear:
                break
            run.append((tickets[block].layer, tickets[block].reads))
        self._running, self._run_left = work, len(run)
        return RunTask(work.task, tuple(run))

    def _progress(self, stream: StreamId, sequence_id: SequenceId) -> _Progress:
        progress = self._subnets.get((stream, sequence_id))
        if progress is None:
            raise InvariantError(
                f"stage {self._stage}: subnet {stream}.{sequence_id} is not under way here"
            )
        return progress

    def _explain(self, progress: _Progress) -> str:
        work = progress.forward if progress.forward.todo else progress.backward
        if not work.todo:
            return f"{work.task} waits for {progress.unwritten} WRITEs before its own"
        if not work.has_input:
            return f"{work.task} has no input"
        if work.unclear:
            layers = [progress.tickets[block] for block in sorted(work.unclear)]
            return f"{work.task} waits for " + ", ".join(f"{t.layer}v{t.reads}" for t in layers)
        return f"{work.task} is clear"
