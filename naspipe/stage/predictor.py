"""The predictor: which layers a stage will use next, the most urgent first.

It runs the scheduler ahead (NASPipe, section 3.2, Algorithm 3): on the work that is queued, on
what the running task will hand on, and on what the neighbours said they will hand over. It
never changes the schedule, only what is loaded before it is needed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import IntEnum
from typing import Any

from naspipe.core.ids import LayerId
from naspipe.core.ports import DispatchOrder
from naspipe.core.task import Task, TaskKind
from naspipe.stage.work import Progress, Work


class _Tier(IntEnum):
    """How soon a task that is not running may run."""

    RUNNING = 0
    OWN_BACKWARD = 1
    """Of the running forward, where this stage is the last."""
    QUEUED = 2
    ANNOUNCED = 3
    """A neighbour will hand its input over next."""
    UNCLEAR = 4
    """It has its input and waits for a WRITE."""
    LATER = 5


def forecast(
    subnets: Iterable[Progress],
    running: Work | None,
    announced: Container[Task],
    order: DispatchOrder,
) -> Iterator[LayerId]:
    """Layers in the order in which they are likely to be used; may name a layer repeatedly.

    Only versions that exist here are named: others cannot be loaded yet.
    """
    ranked: list[tuple[tuple[Any, ...], Work]] = []
    for progress in subnets:
        for work in (progress.forward, progress.backward):
            if work.todo:
                tier = _tier(work, progress, running, announced)
                ranked.append(((tier, *order.key(work.task, work.priority)), work))
    for _, work in sorted(ranked, key=lambda pair: pair[0]):
        yield from work.clear_layers()


def _tier(
    work: Work, progress: Progress, running: Work | None, announced: Container[Task]
) -> _Tier:
    if work is running:
        return _Tier.RUNNING
    if work.is_queued:
        return _Tier.QUEUED
    if work.has_input:
        return _Tier.UNCLEAR
    if work.task.kind is TaskKind.BACKWARD and progress.forward is running and _is_last(progress):
        return _Tier.OWN_BACKWARD
    return _Tier.ANNOUNCED if work.task in announced else _Tier.LATER


def _is_last(progress: Progress) -> bool:
    partition = progress.partition
    return partition.num_stages - 1 == progress.forward.task.stage
