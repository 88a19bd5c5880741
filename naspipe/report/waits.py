"""Why a stage waited: each gap between its records, explained from the access log alone.

    stage 0  0F 1F ....... 0B 1B      no input: the gradients of 0 came from stage 1
    stage 1  .. 0F 0B .. 1F 1B        causal: 1 was here, but reads a layer that 0 had to write

A load is the end of the gap that it held up. Where the record that ended the gap needed nothing
new, the rest is the machine's own doing. Else there was nothing to run: because a forward was
there and might not run (a causal wait), or no further subnet might be let in, or no input.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from naspipe.core.access import Access, AccessKind
from naspipe.core.ids import StageId
from naspipe.report.blocked import Blocked, blocked_stretches
from naspipe.report.needs import Needs, Schedule
from naspipe.trace.access.log import time_key


class Reason(Enum):
    """What a stage waited for."""

    FILL = "fill"
    """The stage's first input: the pipeline was filling."""
    INPUT = "input"
    """Activations, gradients or a layer of another stage, the message's time included."""
    CAUSAL = "causal"
    """An earlier subnet's WRITE of a layer that a forward reads whose input was there."""
    NORM = "norm"
    """The global norm: a WRITE that had its gradient waited for all gradients of its step."""
    WINDOW = "window"
    """An earlier subnet to finish here, so that another may be under way."""
    LOAD = "load"
    """A layer on its way from host memory to the device."""
    OTHER = "other"
    """Nothing that a log knows: dispatch, messages, making of layers, a busy machine."""
    DRAIN = "drain"
    """Nothing is left to do here while other stages finish."""


class Wait(NamedTuple):
    """One stretch in which a stage did nothing; times as in the log.

    ``next`` is the record that ended the gap. ``cause`` is what was waited for: for a causal wait
    the WRITE, which ``blocked`` needed, and so where the norm held that WRITE back; else the record
    on another stage that ``next`` needed.
    """

    stage: StageId
    start_ns: int
    end_ns: int
    reason: Reason
    next: Access | None = None
    cause: Access | None = None
    blocked: Access | None = None


def explain_waits(accesses: Sequence[Access], num_stages: int, schedule: Schedule) -> list[Wait]:
    """Every wait of every stage, by stage and time; with the busy time they fill the makespan.

    Args:
        accesses: a run's log, in any order.
        num_stages: stages of the run; one that recorded nothing drains all the time.
        schedule: what else decided when a record could begin.
    """
    if not accesses:
        return []
    begin = min(access.start_ns for access in accesses)
    end = max(access.end_ns for access in accesses)
    stages: dict[int, list[Access]] = defaultdict(list)
    for access in sorted(accesses, key=time_key):
        stages[access.stage].append(access)
    needs = Needs(accesses, schedule)
    waits: list[Wait] = []
    for stage in range(num_stages):
        waits += _Stage(StageId(stage), stages[stage], needs, begin).waits(end)
    return waits


class _Stage:
    """One stage's records, and what could not run on it when."""

    def __init__(
        self, stage: StageId, records: Sequence[Access], needs: Needs, begin_ns: int
    ) -> None:
        self._stage = stage
        self._records = records
        self._needs = needs
        self._begin_ns = begin_ns
        self._blocked = blocked_stretches(records, needs, begin_ns)
        self._blocked_ends = [each.end_ns for each in self._blocked]
        self._entries = _entries(records)
        self._entry_starts = [entry.start_ns for entry in self._entries]
        self._oldest_entries = _running_oldest(self._entries)

    def waits(self, end_ns: int) -> Iterator[Wait]:
        reached = self._begin_ns
        for place, access in enumerate(self._records):
            if access.start_ns > reached:
                if place == 0:
                    yield Wait(self._stage, reached, access.start_ns, Reason.FILL, access)
                else:
                    yield from self._gap(reached, access)
            reached = max(reached, access.end_ns)
        if reached < end_ns:
            yield Wait(self._stage, reached, end_ns, Reason.DRAIN)

    def _gap(self, start_ns: int, access: Access) -> Iterator[Wait]:
        end_ns = access.start_ns
        load_ns = max(start_ns, end_ns - access.stalled_ns)
        cause = self._awaited(access, start_ns)
        if cause is not None:
            yield from self._without_work(start_ns, load_ns, access, cause)
        elif load_ns > start_ns:  # it could have begun, so what else was blocked is no reason
            yield Wait(self._stage, start_ns, load_ns, Reason.OTHER, access)
        if end_ns > load_ns:
            yield Wait(self._stage, load_ns, end_ns, Reason.LOAD, access)

    def _without_work(
        self, start_ns: int, end_ns: int, access: Access, cause: Access
    ) -> Iterator[Wait]:
        """Cut where a forward was there that only lacked a version."""
        for place in range(bisect_right(self._blocked_ends, start_ns), len(self._blocked)):
            each = self._blocked[place]
            if each.start_ns >= end_ns:
                break
            if each.start_ns > start_ns:
                yield self._idle(start_ns, each.start_ns, access, cause)
                start_ns = each.start_ns
            until_ns = min(each.end_ns, end_ns)
            yield self._causal(start_ns, until_ns, access, each)
            start_ns = until_ns
        if end_ns > start_ns:
            yield self._idle(start_ns, end_ns, access, cause)

    def _causal(self, start_ns: int, end_ns: int, access: Access, each: Blocked) -> Wait:
        reason = Reason.NORM if each.is_held else Reason.CAUSAL
        return Wait(self._stage, start_ns, end_ns, reason, access, each.write, each.record)

    def _idle(self, start_ns: int, end_ns: int, access: Access, cause: Access) -> Wait:
        if access.kind is AccessKind.WRITE and cause.kind is AccessKind.BACKWARD:
            reason = Reason.NORM
        else:
            reason = Reason.WINDOW if self._is_window_full(end_ns) else Reason.INPUT
        return Wait(self._stage, start_ns, end_ns, reason, access, cause)

    def _awaited(self, access: Access, start_ns: int) -> Access | None:
        """What ``access`` got from another stage that was not done when the gap began."""
        held = self._needs.held(access)
        found = [self._needs.sender(access), self._needs.version(access)]
        found.append(held.last if held is not None else None)
        late = [
            cause
            for cause in found
            if cause is not None and cause.stage != self._stage and cause.end_ns > start_ns
        ]
        return max(late, key=lambda cause: cause.end_ns, default=None)

    def _is_window_full(self, time_ns: int) -> bool:
        """Whether the next subnet that was let in here had still to wait for an earlier one."""
        place = bisect_left(self._entry_starts, time_ns)
        if place == len(self._entries):
            return False
        let_in = self._needs.admission(self._oldest_entries[place])
        return let_in is not None and let_in.end_ns >= time_ns


def _entries(records: Sequence[Access]) -> list[Access]:
    """Forwards of the chain's first block, where subnets are let in."""
    return [each for each in records if each.kind is AccessKind.FORWARD and each.layer.block == 0]


def _running_oldest(entries: Sequence[Access]) -> list[Access]:
    """For each entry the oldest subnet's among it and all later ones."""
    result: list[Access] = []
    for entry in reversed(entries):
        is_older = not result or entry.sequence_id < result[-1].sequence_id
        result.append(entry if is_older else result[-1])
    return result[::-1]
