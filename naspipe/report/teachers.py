"""Teachers in the report: the stays of elastic teachers, and when a teacher's forwards ran.

teacher-0  |joined ............................ end|
teacher-1      |joined ...... left|  |joined ... end|
false          x refused

Bars, marks and a table of elastic teachers are made from ``teachers-N.jsonl``. The waits in the
student's log are cut wherever the teacher's log has records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from naspipe.config.ids import Access
from naspipe.report.reductions import Reason
from naspipe.report.waits import Wait
from naspipe.store.access_columns import Life
from naspipe.store.teacher_events import COUNTED, tally

Events = Sequence[Mapping[str, Any]]


class Stay(NamedTuple):
    """A teacher's stay with a student from ``start_ns`` to ``end_ns``.

    ``ends`` is ``left``, ``dismissed``, ``released``, ``end`` (of the student) or ``killed``.
    """

    student: str
    teacher: str
    start_ns: int
    end_ns: int
    ends: str


class Refusal(NamedTuple):
    """A student refused a teacher, or dismissed it for the reason ``why``."""

    student: str
    teacher: str
    time_ns: int
    why: str


def stays_and_refusals(events: Events, lives: Sequence[Life]) -> tuple[list[Stay], list[Refusal]]:
    """Return stays and refusals on the clock of ``lives``, or, without lives, of the events.

    ``events`` are those of :func:`naspipe.store.teacher_events.read_teacher_events`.
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
                killed_ns = before if life is None else now  # each life starts where one ends
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
    """Return bars, marks and rows for the page; columns are empty if there are no teachers.

    Without events, the counts of the ``manifest`` are used. ``start_ns`` is the time of the run's
    first record, which is 0 on the page.
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
    """Return the counts in a manifest, without values that are not counts."""
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


def with_teacher(waits: Iterable[Wait], teacher: Sequence[Access]) -> list[Wait]:
    """Cut waits, sorted by stage and time, wherever the teacher's log has records.

    Both logs must be on the same clock.
    """
    if not teacher:
        return list(waits)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for access in sorted(teacher, key=lambda each: each.start_ns):
        spans[access.stage].append((access.start_ns, access.end_ns))
    parts = []
    for wait in waits:
        now = wait.start_ns
        for start, end in spans[wait.stage]:
            start, end = max(start, now), min(end, wait.end_ns)
            if start >= end:
                continue
            if start > now:
                parts.append(wait._replace(start_ns=now, end_ns=start))
            parts.append(Wait(wait.stage, start, end, Reason.TEACHER))
            now = end
        if now < wait.end_ns:
            parts.append(wait._replace(start_ns=now))
    return parts
