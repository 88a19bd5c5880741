"""Dispatch orders, with every tie-break spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naspipe.core.ports import DispatchOrder
from naspipe.core.task import Task, TaskKind


class PaperOrder:
    """Backward before forward, then the older subnet, then stream and section (Algorithm 1)."""

    max_run = None
    """A task runs as far as it is clear."""

    def key(self, task: Task, priority: int) -> tuple[bool, int, int, int]:
        """The least key runs first; stream and section make it unique on a stage."""
        return (task.kind is TaskKind.FORWARD, task.sequence_id, task.stream, task.section)


class CriticalPathOrder:
    """The access with the longest causal chain behind it first, then as the paper's order.

    The chain leads through later subnets that wait for this one's WRITEs
    (:mod:`naspipe.planning.critical_path`), and the stage chooses anew at every block.
    """

    max_run = 1

    def key(self, task: Task, priority: int) -> tuple[int, bool, int, int, int]:
        """The least key runs first; stream and section make it unique on a stage."""
        is_forward = task.kind is TaskKind.FORWARD
        return (-priority, is_forward, task.sequence_id, task.stream, task.section)


class LatestStartOrder(CriticalPathOrder):
    """The access that has to begin first, of one stream or several, chosen anew at every block.

    That is worked out in a schedule that runs backwards (:mod:`naspipe.planning.latest_start`).
    """


class StreamsCriticalPathOrder:
    """The critical-path order for several streams: a task once begun runs as far as it is clear.

    Another stream's tasks fill the bubbles, so it pays to hand outputs on early, and of paths that
    count as equal the older subnet's goes first, so that no stream falls behind.
    """

    max_run = None

    def key(self, task: Task, priority: int) -> tuple[int, int, bool, int, int]:
        """The least key runs first."""
        is_forward = task.kind is TaskKind.FORWARD
        return (-priority, task.sequence_id, is_forward, task.stream, task.section)


class RankedOrder:
    """Streams of a lower rank first, each of them as another order has it.

    Args:
        order: among the tasks of one rank.
        ranks: of each stream.
    """

    def __init__(self, order: DispatchOrder, ranks: Sequence[int]) -> None:
        self._order = order
        self._ranks = tuple(ranks)
        self.max_run = 1
        """A task gives way at every block."""

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        """The least key runs first."""
        return (self._ranks[task.stream], *self._order.key(task, priority))
