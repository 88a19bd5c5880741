"""The tasks of a stage that could run now, and the one that does."""

from __future__ import annotations

import heapq
from typing import Any

from naspipe.config.errors import InvariantError
from naspipe.config.wiring import CHAIN
from naspipe.core.ports import DispatchOrder
from naspipe.core.task import Task, TaskKind
from naspipe.stage.work import Progress, Work


class ReadyTasks:
    """A queue in dispatch order.

    Args:
        order: which of several runs first.
        starts_partly_clear: a forward is ready as soon as its next block is clear. Otherwise it
            also waits until every version is there that its blocks on the stage will read.
    """

    def __init__(self, order: DispatchOrder, starts_partly_clear: bool) -> None:
        self.order = order
        self._starts_partly_clear = starts_partly_clear
        self.queue: list[tuple[tuple[Any, ...], Work]] = []
        """A heap."""
        self.running: Work | None = None

    def admit(self, progress: Progress) -> None:
        """A subnet is under way: its tasks will be offered."""

    def offer(self, work: Work) -> bool:
        """Queue a task that has its input and whose next blocks are clear; whether it was."""
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
        """A block of the running task is over; returns what is left of the task.

        Raises:
            InvariantError: when it was not the next one.
        """
        work = self.running
        if work is None or work.task != task or not work.todo or work.todo[-1] != block:
            raise InvariantError(f"{task}: block {block} finished, but it was not running")
        work.todo.pop()
        return work

    @property
    def first_key(self) -> tuple[Any, ...] | None:
        """Of the task that would run next; None where there is none."""
        return self.queue[0][0] if self.queue else None

    def begin(self) -> Work | None:
        """Run the first one; None where there is none."""
        if not self.queue:
            return None
        _, self.running = heapq.heappop(self.queue)
        self.running.is_queued = False
        return self.running
