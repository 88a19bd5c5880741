"""Why a stage waited: explains each gap between its records from the access log alone.

    stage 0  0F 1F ....... 0B 1B      no input: the gradients of 0 arrive from stage 1
    stage 1  .. 0F 0B .. 1F 1B        causal: 1 is present, but reads a layer that 0 has to write

A load takes the last part of the gap that it prolonged. If the record that ended the gap needed
nothing new, the rest is overhead of the machine. Otherwise nothing could run: either a forward had
its input but was not allowed to run (a causal wait), or no further subnet could be admitted, or
there was no input. The first part of this module finds when a forward had its input and could not
run.
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


class Blocked(NamedTuple):
    """The forward ``record`` with its input waited for ``needed`` from ``start_ns`` to ``end_ns``.

    This is usually a WRITE, possibly on another stage, from which the version had to be sent. If
    the ``reason`` is not causal order, the WRITE had its gradients and was delayed, or it had ended
    and a copy of the layer was being sent, or another pass's forward had to run first.
    """

    start_ns: int
    end_ns: int
    record: Access
    needed: Access
    reason: Reason = Reason.CAUSAL


def _blocked(records: Iterable[Access], needs: Needs, begin_ns: int) -> Iterator[Blocked]:
    """Yield when each forward of a stage was blocked; ``begin_ns`` is the start of the run."""
    for record in records:
        write = needs.version(record) if record.kind is AccessKind.FORWARD else None
        passed = needs.passed(record)
        if write is None and passed is None:
            continue
        if record.layer.block == 0:
            admission = needs.admission(record)
            input_ns = begin_ns if admission is None else admission.end_ns
        elif (before := needs.before(record)) is not None:
            input_ns = before.end_ns
        else:
            continue  # not in the log
        if write is not None:
            # A version from another stage arrives after its WRITE, when the forward starts.
            clear_ns = write.end_ns if write.stage == record.stage else record.start_ns
            if input_ns < min(write.end_ns, clear_ns):
                apart = needs.holds(write)
                if needs.reductions.is_copy(record):
                    apart.append(Held(write.end_ns, clear_ns, Reason.COPY, write))
                yield from _pieces(Blocked(input_ns, clear_ns, record, write), apart)
        if passed is not None and input_ns < passed.end_ns:
            yield Blocked(input_ns, record.start_ns, record, passed, Reason.BUFFERS)


def _pieces(blocked: Blocked, apart: Iterable[Held]) -> Iterator[Blocked]:
    """Split off the parts ``apart``, which have their own reasons."""
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


def _oldest_of(blocked: Sequence[Blocked]) -> Iterator[Blocked]:
    """Cut overlapping stretches, sorted by start, so that only the oldest subnet is blocked at any
    time."""
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


class Wait(NamedTuple):
    """One stretch in which a stage was idle; times as in the log.

    ``next`` is the record that ended the gap. ``cause`` is the record that the stage waited for: if
    a forward was ``blocked``, the WRITE or forward that it needed; otherwise the record on another
    stage that ``next`` needed.
    """

    stage: StageId
    start_ns: int
    end_ns: int
    reason: Reason
    next: Access | None = None
    cause: Access | None = None
    blocked: Access | None = None


def explain_waits(accesses: Sequence[Access], num_stages: int, schedule: Schedule) -> list[Wait]:
    """Return all waits by stage and time; together with the busy time they cover the makespan.

    The log may be in any order. A stage without records drains all the time.
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
    """One stage's records, and the forwards that were blocked on it."""

    def __init__(
        self, stage: StageId, records: Sequence[Access], needs: Needs, begin_ns: int
    ) -> None:
        self._stage = stage
        self._records = records
        self._needs = needs
        self._begin_ns = begin_ns
        blocked = sorted(_blocked(records, needs, begin_ns), key=lambda each: each.start_ns)
        self._blocked = list(_oldest_of(blocked))
        self._blocked_ends = [each.end_ns for each in self._blocked]
        # Forwards of the first block, where subnets are admitted, and for each of them the oldest
        # subnet's among it and all later forwards.
        forwards = (each for each in records if each.kind is AccessKind.FORWARD)
        entries = [each for each in forwards if each.layer.block == 0]
        self._entry_starts = [entry.start_ns for entry in entries]
        oldest: list[Access] = []
        for entry in reversed(entries):
            is_older = not oldest or entry.sequence_id < oldest[-1].sequence_id
            oldest.append(entry if is_older else oldest[-1])
        self._oldest_entries = oldest[::-1]

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
        cause, reason = self._awaited(access, start_ns)
        if cause is None:
            if load_ns > start_ns:  # it could have started, so blocked forwards are not the reason
                yield Wait(self._stage, start_ns, load_ns, Reason.OTHER, access)
        else:
            idle = Wait(self._stage, start_ns, load_ns, reason, access, cause)
            yield from self._without_work(idle)
        if end_ns > load_ns:
            yield Wait(self._stage, load_ns, end_ns, Reason.LOAD, access)

    def _without_work(self, idle: Wait) -> Iterator[Wait]:
        """Split an idle stretch where a forward with input was blocked."""
        start_ns = idle.start_ns
        for place in range(bisect_right(self._blocked_ends, start_ns), len(self._blocked)):
            each = self._blocked[place]
            if each.start_ns >= idle.end_ns:
                break
            if each.start_ns > start_ns:
                yield self._idle(idle, start_ns, each.start_ns)
                start_ns = each.start_ns
            until_ns = min(each.end_ns, idle.end_ns)
            yield Wait(
                self._stage, start_ns, until_ns, each.reason, idle.next, each.needed, each.record
            )
            start_ns = until_ns
        if idle.end_ns > start_ns:
            yield self._idle(idle, start_ns, idle.end_ns)

    def _idle(self, idle: Wait, start_ns: int, end_ns: int) -> Wait:
        """Return part of an idle stretch; the window was full if the next subnet waited for it."""
        reason = idle.reason
        place = bisect_left(self._entry_starts, end_ns)
        if reason is Reason.INPUT and place < len(self._oldest_entries):
            admission = self._needs.admission(self._oldest_entries[place])
            if admission is not None and admission.end_ns >= end_ns:
                reason = Reason.WINDOW
        return idle._replace(start_ns=start_ns, end_ns=end_ns, reason=reason)

    def _awaited(self, access: Access, start_ns: int) -> tuple[Access | None, Reason]:
        """Return the last record of another stage ``access`` needed in a gap and the reason."""
        needs = self._needs
        found = [(held.cause, held.reason) for held in needs.holds(access)]
        if (version := needs.version(access)) is not None:
            is_sum = access.kind is AccessKind.WRITE and needs.reductions.is_sum(version, access)
            found.append((version, Reason.REDUCTION if is_sum else Reason.INPUT))
        for need in (needs.sender, needs.passed, needs.taught, needs.probed):
            if (other := need(access)) is not None:
                found.append((other, Reason.INPUT))
        late = [
            pair for pair in found if pair[0].stage != self._stage and pair[0].end_ns > start_ns
        ]
        return max(late, key=lambda pair: pair[0].end_ns, default=(None, Reason.OTHER))
