"""A run's timeline in the trace event format, which Perfetto and chrome://tracing open.

Each stage has a track of records and one of waits. Every message between stages is an arrow; sums
from other groups are async events with an arrow each. Counters show busy time, stalls and losses;
each elastic teacher has a track. Times are microseconds since the run's first record, exact to the
nanosecond ("Trace Event Format", google/trace-viewer, sections on complete, async, flow, counter
and metadata events).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from naspipe.config.ids import Access, AccessKind
from naspipe.report.needs import Needs
from naspipe.report.recorded import Recorded
from naspipe.report.reductions import Handover, Reason
from naspipe.report.run_tables import BUSY, time_bins
from naspipe.report.teachers import stays_and_refusals, with_teacher
from naspipe.report.waits import Wait, explain_waits
from naspipe.store.access_log import time_key
from naspipe.store.files import atomic_file
from naspipe.store.labels import SpaceLabels

_Event = dict[str, Any]
_Clock = Callable[[int], float]
"""Converts nanoseconds of a log to microseconds since the run's first record."""
_NAMES = {
    AccessKind.FORWARD: "forward",
    AccessKind.BACKWARD: "backward",
    AccessKind.WRITE: "write",
}


def write_chrome_trace(path: Path, run: Recorded) -> None:
    """Write the trace of a run to ``path`` atomically."""
    with atomic_file(path) as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = b""
        for event in trace_events(run):
            file.write(separator + json.dumps(event, allow_nan=False).encode())
            separator = b",\n"
        file.write(b"\n]}\n")


def trace_events(run: Recorded) -> Iterator[_Event]:
    """Yield every event of a run's trace: tracks, records, waits, messages, counters."""
    accesses = sorted(run.accesses, key=time_key)
    waits = with_teacher(explain_waits(accesses, run.num_stages, run.schedule), run.teacher)
    begin_ns = min((access.start_ns for access in accesses), default=0)

    def clock(time_ns: int) -> float:
        return (time_ns - begin_ns) / 1000

    name = f"naspipe {run.path.name}: {run.labels.name}"
    yield _event("M", "process_name", 0, args={"name": name})
    for stage in range(run.num_stages):
        for track, suffix in ((_track(stage), ""), (_track(stage) + 1, " waits")):
            yield from _new_track(track, f"stage {stage}{suffix}")

    for access in accesses:
        args = {
            "subnet": access.sequence_id,
            "layer": run.labels.label(access.layer),
            "version": access.version,
        }
        if access.stalled_ns:
            args["stalled_us"] = access.stalled_ns / 1000
        yield _slice(
            _name(access, run.labels), _track(access.stage), _NAMES[access.kind],
            clock(access.start_ns), access.end_ns - access.start_ns, args=args,
        )  # fmt: skip
        if access.owed_ns:  # a slice nested in that of the WRITE
            yield _slice(
                "weights' gradients", _track(access.stage), "weights",
                clock(access.start_ns), access.owed_ns,
            )  # fmt: skip

    for wait in waits:
        if wait.reason is Reason.OTHER:
            continue
        records = {"next": wait.next, "blocked": wait.blocked}
        texts = {key: _name(each, run.labels) for key, each in records.items() if each is not None}
        if wait.cause is not None:
            texts["waited for"] = f"{_name(wait.cause, run.labels)} on stage {wait.cause.stage}"
        yield _slice(
            wait.reason.value, _track(wait.stage) + 1, "wait",
            clock(wait.start_ns), wait.end_ns - wait.start_ns, args=texts,
        )  # fmt: skip

    needs = Needs(accesses, run.schedule)
    number = 0
    for access in accesses:
        if (sender := needs.sender(access)) is not None:
            number += 1
            what = "activations" if access.kind is AccessKind.FORWARD else "gradients"
            yield from _arrow(what, "message", number, sender, access, clock)
    yield from _sums(needs.reductions.handovers, run.labels, clock)
    yield from _counters(run, accesses, waits, clock)
    yield from _teachers(run, clock)


def _name(access: Access, labels: SpaceLabels) -> str:
    return f"{access.sequence_id}{access.kind.value} {labels.label(access.layer)}"


def _arrow(
    what: str, category: str, number: int, sender: Access, access: Access, clock: _Clock
) -> Iterator[_Event]:
    """Draw an arrow from the middle of the sender's slice, because it binds to that slice."""
    common = {"cat": category, "id": number}
    middle_us = clock((sender.start_ns + sender.end_ns) // 2)
    yield _event("s", what, _track(sender.stage), ts=middle_us, **common)
    yield _event("f", what, _track(access.stage), ts=clock(access.start_ns), bp="e", **common)


def _sums(handovers: Sequence[Handover], labels: SpaceLabels, clock: _Clock) -> Iterator[_Event]:
    """Yield an arrow for each sum, and an async event from its earliest sending to its joining.

    Sums of one stage overlap and therefore need async events; those of one name share a track.
    """
    for number, each in enumerate(handovers, 1):
        given, joined = each.given, each.joined
        if joined.start_ns >= given.end_ns:  # in a tree it may arrive after the receiver's last
            yield from _arrow("sum", "reduction", number, given, joined, clock)
        args = {
            "layer": labels.label(joined.layer),
            "from": f"{_name(given, labels)} on stage {given.stage}",
            "to": _name(joined, labels),
            "waited_us": each.waited_ns / 1000,
        }
        name, track = f"sums for stage {joined.stage}", _track(joined.stage)
        common = {"cat": "sum", "id": number}
        yield _event("b", name, track, ts=clock(each.left_ns), args=args, **common)
        yield _event("e", name, track, ts=clock(each.joined_ns), **common)


def _teachers(run: Recorded, clock: _Clock) -> Iterator[_Event]:
    """Yield a track for each elastic teacher, with marks for refusals."""
    stays, refusals = stays_and_refusals(run.teacher_events, run.lives)
    names = dict.fromkeys([*(each.teacher for each in stays), *(each.teacher for each in refusals)])
    tracks = {name: 2 * run.num_stages + place for place, name in enumerate(names)}
    for name, track in tracks.items():
        yield from _new_track(track, f"teacher {name:.80}")
    for stay in stays:
        args = {"ends": stay.ends, "student": stay.student}
        length_ns = stay.end_ns - stay.start_ns
        start_us, track = clock(stay.start_ns), tracks[stay.teacher]
        yield _slice("teaches", track, "teacher", start_us, length_ns, args=args)
    for each in refusals:
        time_us, args = clock(each.time_ns), {"why": each.why}
        yield _event("i", "refused", tracks[each.teacher], s="t", ts=time_us, args=args)


def _counters(
    run: Recorded, accesses: Sequence[Access], waits: Sequence[Wait], clock: _Clock
) -> Iterator[_Event]:
    """Yield fractions of busy and stalled time of all stages, and each pass's loss at its end."""
    bins = time_bins(accesses, waits, run.num_stages)
    for place, edge in enumerate(bins.edges_ns[:-1]):
        for name, column in (("busy", BUSY), ("stalled", Reason.LOAD.value)):
            share = sum(stage[column][place] for stage in bins.shares) / run.num_stages
            yield _event("C", name, 0, ts=clock(edge), args={"share": round(share, 6)})
    ends: dict[tuple[int, int], int] = {}
    for access in accesses:
        key = (access.layer.stream, access.sequence_id)
        ends[key] = max(ends.get(key, 0), access.end_ns)
    for loss in run.losses:
        end_ns = ends.get((loss.stream, loss.sequence_id))
        if end_ns is not None and abs(loss.value) < float("inf"):
            name = f"loss of stream {loss.stream}" if loss.stream else "loss"
            yield _event("C", name, 0, ts=clock(end_ns), args={"loss": loss.value})


def _new_track(track: int, name: str) -> Iterator[_Event]:
    yield _event("M", "thread_name", track, args={"name": name})
    yield _event("M", "thread_sort_index", track, args={"sort_index": track})


def _slice(
    name: str, track: int, category: str, start_us: float, length_ns: int, **more: Any
) -> _Event:
    return _event("X", name, track, start_us, cat=category, dur=length_ns / 1000, **more)


def _event(phase: str, name: str, track: int, ts: float = 0, **more: Any) -> _Event:
    return {"ph": phase, "name": name, "pid": 0, "tid": track, "ts": ts, **more}


def _track(stage: int) -> int:
    """Return the thread of a stage's records, 2s for stage s; its waits have thread 2s + 1."""
    return 2 * stage
