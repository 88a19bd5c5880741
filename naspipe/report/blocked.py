"""When a stage had a forward's input in hand and might not run it: causal order at work."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind
from naspipe.report.needs import Needs
from naspipe.report.reasons import Reason
from naspipe.report.reductions import Held


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
