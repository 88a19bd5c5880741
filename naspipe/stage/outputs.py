"""Where the output of a task goes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from naspipe.core.commands import SendOutput
from naspipe.core.task import TaskKind
from naspipe.stage.work import Progress, Work

_ANNOUNCED = 2
"""Tasks that a stage announces to a neighbour with each output."""


def hand_on(
    progress: Progress, work: Work, queue: Sequence[tuple[tuple[Any, ...], Work]]
) -> SendOutput | None:
    """Hand a finished task's output on along the chain: to the next stage, or to the one before.

    None where there is none: the chain, or the part that a backward goes through, ends on this
    stage. ``queue`` says what comes after it.
    """
    task, partition = work.task, progress.partition
    blocks = partition.blocks(task.stage)
    if task.kind is TaskKind.BACKWARD:
        receiver = blocks.start - 1 if work.goes_back else -1
    else:
        receiver = blocks.stop if blocks.stop < partition.num_blocks else -1
    if receiver < 0:
        return None
    stage = partition.stage_of(receiver)
    upcoming = heapq.nsmallest(
        _ANNOUNCED, ((key, each.task) for key, each in queue if each.task.kind is task.kind)
    )
    return SendOutput(task.at(stage), tuple(next_task.at(stage) for _, next_task in upcoming))
