"""Dispatch orders, with every tie-break defined, and the queue of tasks that could run now."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from naspipe.config.errors import InvariantError
from naspipe.config.wiring import CHAIN
from naspipe.engine.events import Task, TaskKind
from naspipe.engine.ports import DispatchOrder
from naspipe.engine.work import Progress, Work


class PaperOrder:
    """Backward before forward, then the older subnet, then stream and section (Algorithm 1)."""

    max_run = None

    def key(self, task: Task, priority: int) -> tuple[bool, int, int, int]:
        return (task.kind is TaskKind.FORWARD, task.sequence_id, task.stream, task.section)


class CriticalPathOrder:
    """The access with the longest causal chain after it first, then as in the paper's order.

    The chain leads through later subnets that wait for this one's WRITEs
    (:mod:`naspipe.plan.bounds`), and the stage chooses again at every block.
    """

    max_run = 1

    def key(self, task: Task, priority: int) -> tuple[int, bool, int, int, int]:
        is_forward = task.kind is TaskKind.FORWARD
        return (-priority, is_forward, task.sequence_id, task.stream, task.section)


class LatestStartOrder(CriticalPathOrder):
    """The access with the earliest latest start first, in one or more streams, block by block.

    The latest starts are computed with a schedule that runs backwards in time
    (:mod:`naspipe.plan.latest_start`).
    """


class StreamsCriticalPathOrder:
    """The critical-path order for several streams: a started task runs as far as it is clear.

    Another stream's tasks fill the bubbles, so it pays to send outputs early. Among paths of equal
    length the older subnet's goes first, so that no stream falls behind.
    """

    max_run = None

    def key(self, task: Task, priority: int) -> tuple[int, int, bool, int, int]:
        is_forward = task.kind is TaskKind.FORWARD
        return (-priority, task.sequence_id, is_forward, task.stream, task.section)


class RankedOrder:
    """Streams of a lower rank first, each of them ordered by another order."""

    def __init__(self, order: DispatchOrder, ranks: Sequence[int]) -> None:
        self._order = order
        self._ranks = tuple(ranks)
        self.max_run = 1

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        return (self._ranks[task.stream], *self._order.key(task, priority))


class ReadyTasks:
    """A queue in dispatch order.

    Args:
        order: decides which of several tasks runs first.
        starts_partly_clear: if True, a forward is ready as soon as its next block is clear.
            Otherwise it also waits until every version that its blocks on the stage will read
            exists.
    """

    def __init__(self, order: DispatchOrder, starts_partly_clear: bool) -> None:
        self.order = order
        self._starts_partly_clear = starts_partly_clear
        self.queue: list[tuple[tuple[Any, ...], Work]] = []
        self.running: Work | None = None

    def admit(self, progress: Progress) -> None:
        pass

    def offer(self, work: Work) -> bool:
        """Queue a task if it is ready; returns True if it was queued."""
        if not self._is_ready(work):
            return False
        self._queue(work)
        return True

    def _is_ready(self, work: Work) -> bool:
        if work.is_queued or CHAIN in work.missing or not work.todo or work is self.running:
            return False
        if work.todo[-1] in work.unclear:
            return False
        is_forward = work.task.kind is TaskKind.FORWARD
        return not is_forward or self._starts_partly_clear or not work.num_unread

    def _queue(self, work: Work) -> None:
        work.is_queued = True
        heapq.heappush(self.queue, (self.order.key(work.task, work.priority), work))

    def finish(self, task: Task, block: int) -> Work:
        """Record that a block of the running task has finished; returns the task."""
        work = self.running
        if work is None or work.task != task or not work.todo or work.todo[-1] != block:
            raise InvariantError(f"{task}: block {block} finished, but it was not running")
        work.todo.pop()
        return work

    @property
    def first_key(self) -> tuple[Any, ...] | None:
        return self.queue[0][0] if self.queue else None

    def begin(self) -> Work | None:
        if not self.queue:
            return None
        _, self.running = heapq.heappop(self.queue)
        self.running.is_queued = False
        return self.running
