"""Where a teacher's forwards ran: what the student's log alone shows as waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from naspipe.config.ids import Access
from naspipe.report.reasons import Reason
from naspipe.report.waits import Wait


def with_teacher(waits: Iterable[Wait], teacher: Sequence[Access]) -> list[Wait]:
    """The waits, and in their place the teacher's records, where there were any.

    Args:
        waits: of the student's log, by stage and time.
        teacher: the teacher's log, on the same clock.
    """
    if not teacher:
        return list(waits)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for access in sorted(teacher, key=lambda each: each.start_ns):
        spans[access.stage].append((access.start_ns, access.end_ns))
    return [part for wait in waits for part in _parts(wait, spans[wait.stage])]


def _parts(wait: Wait, spans: Sequence[tuple[int, int]]) -> Iterator[Wait]:
    """A wait, cut where the teacher ran."""
    now = wait.start_ns
    for start, end in spans:
        start, end = max(start, now), min(end, wait.end_ns)
        if start >= end:
            continue
        if start > now:
            yield wait._replace(start_ns=now, end_ns=start)
        yield Wait(wait.stage, start, end, Reason.TEACHER)
        now = end
    if now < wait.end_ns:
        yield wait._replace(start_ns=now)
