"""Why a stage waited: each gap between its records, explained from the access log alone.

    stage 0  0F 1F ....... 0B 1B      no input: the gradients of 0 came from stage 1
    stage 1  .. 0F 0B .. 1F 1B        causal: 1 was here, but reads a layer that 0 had to write

A load is the end of the gap that it held up. Where the record that ended the gap needed nothing
new, the rest is the machine's own doing. Else there was nothing to run: because a forward was
there and might not run (a causal wait), or no further subnet might be let in, or no input. The
first part of this module finds when a forward had its input and might not run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind, StageId
from naspipe.report.needs import Needs, Schedule
from naspipe.report.reductions import Held, Reason
from naspipe.store.access_log import time_key

# Forwards that had their input and might not run


class Blocked(NamedTuple):
    """From ``start_ns`` to ``end_ns`` the forward ``record`` had its input, ``needed`` to come.

    That is most often a WRITE. It may have been made on another stage, whose version then had
    still to travel. Where the ``reason`` is not causal order, the WRITE had its gradients and was
    held back, or it was over and a copy of the layer on its way; or the forward of another pass
    had to come first.
    """

    start_ns: int
    end_ns: int
    record: Access
    needed: Access
    reason: Reason = Reason.CAUSAL


def blocked_stretches(records: Iterable[Access], needs: Needs, begin_ns: int) -> list[Blocked]:
    """Stretches of one stage that do not overlap, in order; the oldest blocked subnet names each.

    Args:
        records: every record of the stage.
        needs: of the whole log.
        begin_ns: when the run began, and its first subnets could.
    """
    return list(_oldest_of(sorted(_all(records, needs, begin_ns), key=lambda each: each.start_ns)))


def _all(records: Iterable[Access], needs: Needs, begin_ns: int) -> Iterator[Blocked]:
    for record in records:
        write = needs.version(record) if record.kind is AccessKind.FORWARD else None
        passed = needs.passed(record)
        if write is None and passed is None:
            continue
        input_ns = _input_ns(record, needs, begin_ns)
        if input_ns is None:
            continue  # not in the log
        if write is not None:
            yield from _until_written(input_ns, record, write, needs)
        if passed is not None and input_ns < passed.end_ns:
            yield Blocked(input_ns, record.start_ns, record, passed, Reason.BUFFERS)


def _input_ns(record: Access, needs: Needs, begin_ns: int) -> int | None:
    """When a forward had its input, or was let in; None where the log does not say."""
    if record.layer.block == 0:
        admission = needs.admission(record)
        return begin_ns if admission is None else admission.end_ns
    before = needs.before(record)
    return None if before is None else before.end_ns


def _until_written(input_ns: int, record: Access, write: Access, needs: Needs) -> Iterator[Blocked]:
    # A version of another stage arrives some time after its WRITE, when the forward begins.
    clear_ns = write.end_ns if write.stage == record.stage else record.start_ns
    if input_ns < write.end_ns and input_ns < clear_ns:
        apart = needs.holds(write)
        if needs.reductions.is_copy(record):
            apart.append(Held(write.end_ns, clear_ns, Reason.COPY, write))
        yield from _pieces(Blocked(input_ns, clear_ns, record, write), apart)


def _pieces(blocked: Blocked, apart: Iterable[Held]) -> Iterator[Blocked]:
    """Cut out the parts that have a reason of their own."""
    start_ns, end_ns = blocked.start_ns, blocked.end_ns
    for held in apart:
        from_ns = min(max(start_ns, held.start_ns), end_ns)
        until_ns = min(max(from_ns, held.end_ns), end_ns)
        if start_ns < from_ns:
            yield blocked._replace(start_ns=start_ns, end_ns=from_ns)
        if from_ns < until_ns:
            yield blocked._replace(start_ns=from_ns, end_ns=until_ns, reason=held.reason)
        start_ns = until_ns
    if start_ns < end_ns:
        yield blocked._replace(start_ns=start_ns)


def _oldest_of(blocked: list[Blocked]) -> Iterator[Blocked]:
    """Cut overlapping stretches so that each moment belongs to the oldest blocked subnet."""
    moments = sorted({each.start_ns for each in blocked} | {each.end_ns for each in blocked})
    open_: list[tuple[tuple[int, ...], Blocked]] = []
    place = 0
    for start_ns, end_ns in pairwise(moments):
        while place < len(blocked) and blocked[place].start_ns <= start_ns:
            record = blocked[place].record
            layer = record.layer
            age = (record.sequence_id, layer.stream, layer.block, place)
            heapq.heappush(open_, (age, blocked[place]))
            place += 1
        while open_ and open_[0][1].end_ns <= start_ns:
            heapq.heappop(open_)
        if open_:
            yield open_[0][1]._replace(start_ns=start_ns, end_ns=end_ns)


# Every gap, explained


class Wait(NamedTuple):
    """One stretch in which a stage did nothing; times as in the log.

    ``next`` is the record that ended the gap. ``cause`` is what was waited for: where a forward was
    ``blocked``, the WRITE or the other forward that it needed; else the record on another stage
    that ``next`` needed.
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


class _Awaited(NamedTuple):
    """A record on another stage, and what waiting for it is called."""

    cause: Access
    reason: Reason


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
        awaited = self._awaited(access, start_ns)
        if awaited is not None:
            yield from self._without_work(start_ns, load_ns, access, awaited)
        elif load_ns > start_ns:  # it could have begun, so what else was blocked is no reason
            yield Wait(self._stage, start_ns, load_ns, Reason.OTHER, access)
        if end_ns > load_ns:
            yield Wait(self._stage, load_ns, end_ns, Reason.LOAD, access)

    def _without_work(
        self, start_ns: int, end_ns: int, access: Access, awaited: _Awaited
    ) -> Iterator[Wait]:
        """Cut where a forward was there that only lacked a version."""
        for place in range(bisect_right(self._blocked_ends, start_ns), len(self._blocked)):
            each = self._blocked[place]
            if each.start_ns >= end_ns:
                break
            if each.start_ns > start_ns:
                yield self._idle(start_ns, each.start_ns, access, awaited)
                start_ns = each.start_ns
            until_ns = min(each.end_ns, end_ns)
            yield Wait(
                self._stage, start_ns, until_ns, each.reason, access, each.needed, each.record
            )
            start_ns = until_ns
        if end_ns > start_ns:
            yield self._idle(start_ns, end_ns, access, awaited)

    def _idle(self, start_ns: int, end_ns: int, access: Access, awaited: _Awaited) -> Wait:
        reason = awaited.reason
        if reason is Reason.INPUT and self._is_window_full(end_ns):
            reason = Reason.WINDOW
        return Wait(self._stage, start_ns, end_ns, reason, access, awaited.cause)

    def _awaited(self, access: Access, start_ns: int) -> _Awaited | None:
        """What ``access`` got from another stage that was not done when the gap began."""
        found = [_Awaited(held.cause, held.reason) for held in self._needs.holds(access)]
        if (version := self._needs.version(access)) is not None:
            is_sum = access.kind is AccessKind.WRITE and self._needs.reductions.is_sum(
                version, access
            )
            found.append(_Awaited(version, Reason.REDUCTION if is_sum else Reason.INPUT))
        needs = self._needs
        for need in (needs.sender, needs.passed, needs.taught, needs.probed):
            if (other := need(access)) is not None:
                found.append(_Awaited(other, Reason.INPUT))
        late = [
            each
            for each in found
            if each.cause.stage != self._stage and each.cause.end_ns > start_ns
        ]
        return max(late, key=lambda each: each.cause.end_ns, default=None)

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
