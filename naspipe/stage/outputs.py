"""Where the output of a task goes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from naspipe.core.commands import SendOutput
from naspipe.stage.work import Work

_ANNOUNCED = 2
"""Tasks that a stage announces to another one with each output."""


def hand_on(work: Work, queue: Sequence[tuple[tuple[Any, ...], Work]]) -> SendOutput | None:
    """Hand a finished task's output on along the chain, to the stage of the next block.

    None where there is none: the chain, or the part that a backward goes through, ends on this
    stage. ``queue`` says what comes after it.
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
