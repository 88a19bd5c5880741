"""Dispatch orders, with every tie-break spelled out."""

from __future__ import annotations

from naspipe.core.task import Task, TaskKind


class PaperOrder:
    """Backward before forward, then the older subnet, then stream, then pass (Algorithm 1)."""

    def key(self, task: Task) -> tuple[bool, int, int, int]:
        """The least key runs first; stream and pass make it unique on a stage."""
        return (task.kind is TaskKind.FORWARD, task.sequence_id, task.stream, task.pass_id)
