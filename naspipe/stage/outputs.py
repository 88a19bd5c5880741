"""Where the output of a task goes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from naspipe.core.commands import SendOutput
from naspipe.core.task import Task, TaskKind
from naspipe.stage.work import Progress, Work

_ANNOUNCED = 2
"""Tasks that a stage announces to a neighbour with each output."""


def send_output(
    progress: Progress, task: Task, queue: Sequence[tuple[tuple[Any, ...], Work]]
) -> SendOutput | None:
    """Hand a finished task's output on to the next stage, or to the one before.

    None where there is none: the chain ends on this stage. ``queue`` says what comes after it.
    """
    partition = progress.partition
    blocks = partition.blocks(task.stage)
    if task.kind is TaskKind.BACKWARD:
        receiver = blocks.start - 1
    else:
        receiver = blocks.stop if blocks.stop < partition.num_blocks else -1
    if receiver < 0:
        return None
    stage = partition.stage_of(receiver)
    upcoming = heapq.nsmallest(
        _ANNOUNCED, ((key, work.task) for key, work in queue if work.task.kind is task.kind)
    )
    return SendOutput(task.at(stage), tuple(next_task.at(stage) for _, next_task in upcoming))
