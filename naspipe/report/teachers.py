"""Teachers in the report: elastic ones that came and went, and when a teacher's forwards ran.

teacher-0  |joined ............................ end|
teacher-1      |joined ...... left|  |joined ... end|
false          x refused

Bars, marks and a table of elastic teachers are made of ``teachers-N.jsonl``. What the student's log
alone shows as waits is cut where the log of the teacher has records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from naspipe.config.ids import Access
from naspipe.report.reductions import Reason
from naspipe.report.waits import Wait
from naspipe.store.access_columns import Life
from naspipe.store.teacher_events import COUNTED, tally

# Teachers that came and went


Events = Sequence[Mapping[str, Any]]


class Stay(NamedTuple):
    """A student had a teacher from ``start_ns`` to ``end_ns``."""

    student: str
    teacher: str
    start_ns: int
    end_ns: int
    ends: str
    """How: ``left``, ``dismissed``, ``released``, ``end`` (of the student) or ``killed``."""


class Refusal(NamedTuple):
    """A student would not have a teacher, or would no longer."""

    student: str
    teacher: str
    time_ns: int
    why: str


def stays_and_refusals(events: Events, lives: Sequence[Life]) -> tuple[list[Stay], list[Refusal]]:
    """Both by time, on the clock of the lives; without lives, on the events' own.

    Args:
        events: by generation and time, from
            :func:`naspipe.store.teacher_events.read_teacher_events`.
        lives: of the run's logs.
    """
    by_generation = {life.generation: life for life in lives}
    stays: list[Stay] = []
    refusals: list[Refusal] = []
    joined: dict[tuple[str, str], int] = {}
    now = 0

    def close(student: str, teacher: str, how: str, time_ns: int) -> None:
        start_ns = joined.pop((student, teacher), None)
        if start_ns is not None:
            stays.append(Stay(student, teacher, start_ns, max(start_ns, time_ns), how))

    for event in events:
        life, student, before = by_generation.get(event["generation"]), event["student"], now
        now = event["time_ns"] if life is None else life.place(event["time_ns"])
        teacher = event.get("teacher", "")
        match event["event"]:
            case "joined":
                close(student, teacher, "left", now)
                joined[student, teacher] = now
            case "left" | "dismissed" | "released" as how:
                close(student, teacher, how, now)
            case "refused":
                refusals.append(Refusal(student, teacher, now, event["why"]))
            case "begin" | "end" as what:
                killed_ns = before if life is None else now  # lives are laid end to end
                how, time_ns = ("end", now) if what == "end" else ("killed", killed_ns)
                for each in [each for each in joined if each[0] == student]:
                    close(*each, how, time_ns)
    last = max([now, *(life.end_ns for life in lives)])
    for student, teacher in list(joined):
        close(student, teacher, "killed", last)
    return sorted(stays, key=lambda each: (each.start_ns, *each)), refusals


def teacher_tables(
    events: Events, lives: Sequence[Life], manifest: Mapping[str, Any], start_ns: int
) -> dict[str, Any]:
    """Bars, marks and rows for the page; empty columns without any teachers.

    Args:
        events: see :func:`stays_and_refusals`.
        lives: the same.
        manifest: of the run; what it counted is taken where no events are left.
        start_ns: of the run's first record, which is 0 on the page.
    """
    stays, refusals = stays_and_refusals(events, lives)
    times = [each.start_ns for each in stays] + [each.time_ns for each in refusals]
    zero = start_ns if lives else min(times, default=0)
    names = sorted(
        {(each.student, each.teacher) for each in stays}
        | {(each.student, each.teacher) for each in refusals}
    )
    places = {name: place for place, name in enumerate(names)}
    is_one = len({student for student, _ in names}) < 2
    counted = tally(events) or _counted(manifest)
    return {
        "names": [name if is_one else f"group {student}: {name}" for student, name in names],
        "stays": {
            "row": [places[each.student, each.teacher] for each in stays],
            "start": [each.start_ns - zero for each in stays],
            "length": [each.end_ns - each.start_ns for each in stays],
            "ends": [each.ends for each in stays],
        },
        "refusals": {
            "row": [places[each.student, each.teacher] for each in refusals],
            "time": [each.time_ns - zero for each in refusals],
            "why": [each.why for each in refusals],
        },
        "counted": list(COUNTED),
        "counts": [
            [name, *(found.get(what, 0) for what in COUNTED)]
            for name, found in sorted(counted.get("by_teacher", {}).items())
        ],
        "audits_missed": counted.get("audits_missed", 0),
        "seconds_missing": counted.get("seconds_missing", 0),
    }


def _counted(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a manifest has counted, as far as it is counts at all."""
    measured = manifest.get("measured")
    found = measured.get("teachers") if isinstance(measured, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("by_teacher"), Mapping):
        return {}
    known = {
        name: {what: count for what, count in counts.items() if type(count) is int}
        for name, counts in found["by_teacher"].items()
        if isinstance(counts, Mapping)
    }
    more = {
        what: found[what]
        for what in ("audits_missed", "seconds_missing")
        if type(found.get(what)) in (int, float)
    }
    return {"by_teacher": known, **more}


# Where a teacher's forwards ran


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
