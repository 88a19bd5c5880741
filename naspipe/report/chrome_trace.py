"""A run's timeline in the trace event format, which Perfetto and chrome://tracing open.

Per stage one track of records and one of waits, an arrow for every message between stages,
and counters. The sums that come from other groups are stretches of their own, with an arrow each.
Teachers that came and went have a track each.
Times are microseconds since the run's first record, exact to the nanosecond ("Trace Event
Format", google/trace-viewer, sections on complete, async, flow, counter and metadata events).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
_PROCESS = 0
_NAMES = {
    AccessKind.FORWARD: "forward",
    AccessKind.BACKWARD: "backward",
    AccessKind.WRITE: "write",
}


def write_chrome_trace(path: Path, run: Recorded) -> None:
    """Write ``path``; it appears whole or not at all."""
    with atomic_file(path) as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = b""
        for event in trace_events(run):
            file.write(separator + json.dumps(event, allow_nan=False).encode())
            separator = b",\n"
        file.write(b"\n]}\n")


def trace_events(run: Recorded) -> Iterator[_Event]:
    """Every event of a run's trace: tracks, records, waits, messages, counters."""
    accesses = sorted(run.accesses, key=time_key)
    waits = with_teacher(explain_waits(accesses, run.num_stages, run.schedule), run.teacher)
    start_ns = min((access.start_ns for access in accesses), default=0)
    yield from _tracks(run)
    for access in accesses:
        yield _record(access, run.labels, start_ns)
        if access.owed_ns:  # a slice within that of the WRITE
            yield _event(
                "X", "weights' gradients", _track(access.stage), cat="weights",
                ts=(access.start_ns - start_ns) / 1000, dur=access.owed_ns / 1000,
            )  # fmt: skip
    for wait in waits:
        if wait.reason is not Reason.OTHER:
            yield _wait(wait, run.labels, start_ns)
    needs = Needs(accesses, run.schedule)
    yield from _messages(accesses, needs, start_ns)
    yield from _sums(needs.reductions.handovers, run.labels, start_ns)
    yield from _counters(run, accesses, waits, start_ns)
    yield from _teachers(run, start_ns)


def _tracks(run: Recorded) -> Iterator[_Event]:
    """Names and order of the tracks: the records of stage s are thread 2s, its waits 2s + 1."""
    name = f"naspipe {run.path.name}: {run.labels.name}"
    yield _event("M", "process_name", 0, args={"name": name})
    for stage in range(run.num_stages):
        for track, suffix in ((_track(stage), ""), (_wait_track(stage), " waits")):
            yield _event("M", "thread_name", track, args={"name": f"stage {stage}{suffix}"})
            yield _event("M", "thread_sort_index", track, args={"sort_index": track})


def _record(access: Access, labels: SpaceLabels, start_ns: int) -> _Event:
    label = labels.label(access.layer)
    args = {"subnet": access.sequence_id, "layer": label, "version": access.version}
    if access.stalled_ns:
        args["stalled_us"] = access.stalled_ns / 1000
    return _event(
        "X",
        f"{access.sequence_id}{access.kind.value} {label}",
        _track(access.stage),
        cat=_NAMES[access.kind],
        ts=(access.start_ns - start_ns) / 1000,
        dur=(access.end_ns - access.start_ns) / 1000,
        args=args,
    )


def _wait(wait: Wait, labels: SpaceLabels, start_ns: int) -> _Event:
    args: dict[str, Any] = {}
    if wait.next is not None:
        args["next"] = _name(wait.next, labels)
    if wait.blocked is not None:
        args["blocked"] = _name(wait.blocked, labels)
    if wait.cause is not None:
        args["waited for"] = f"{_name(wait.cause, labels)} on stage {wait.cause.stage}"
    return _event(
        "X",
        wait.reason.value,
        _wait_track(wait.stage),
        cat="wait",
        ts=(wait.start_ns - start_ns) / 1000,
        dur=(wait.end_ns - wait.start_ns) / 1000,
        args=args,
    )


def _name(access: Access, labels: SpaceLabels) -> str:
    return f"{access.sequence_id}{access.kind.value} {labels.label(access.layer)}"


def _messages(accesses: Sequence[Access], needs: Needs, start_ns: int) -> Iterator[_Event]:
    """An arrow from the record that sent to the one that began with it.

    An arrow binds to the slice around its time, so it leaves from the middle of the sender.
    """
    number = 0
    for access in accesses:
        sender = needs.sender(access)
        if sender is None:
            continue
        number += 1
        what = "activations" if access.kind is AccessKind.FORWARD else "gradients"
        yield from _arrow(what, "message", number, sender, access, start_ns)


def _arrow(
    what: str, category: str, number: int, sender: Access, access: Access, start_ns: int
) -> Iterator[_Event]:
    common = {"cat": category, "id": number}
    middle_ns = (sender.start_ns + sender.end_ns) // 2 - start_ns
    yield _event("s", what, _track(sender.stage), ts=middle_ns / 1000, **common)
    end_us = (access.start_ns - start_ns) / 1000
    yield _event("f", what, _track(access.stage), ts=end_us, bp="e", **common)


def _sums(handovers: Sequence[Handover], labels: SpaceLabels, start_ns: int) -> Iterator[_Event]:
    """For each sum an arrow, and a stretch from when it could leave until it was joined.

    Stretches of one stage overlap, so they are async events; those of one name share a track.
    """
    for number, each in enumerate(handovers, 1):
        given, joined = each.given, each.joined
        if joined.start_ns >= given.end_ns:  # in a tree a sum may come behind the receiver's last
            yield from _arrow("sum", "reduction", number, given, joined, start_ns)
        args = {
            "layer": labels.label(joined.layer),
            "from": f"{_name(given, labels)} on stage {given.stage}",
            "to": _name(joined, labels),
            "waited_us": each.waited_ns / 1000,
        }
        name, track = f"sums for stage {joined.stage}", _track(joined.stage)
        common = {"cat": "sum", "id": number}
        left_us, end_us = ((ns - start_ns) / 1000 for ns in (each.left_ns, each.joined_ns))
        yield _event("b", name, track, ts=left_us, args=args, **common)
        yield _event("e", name, track, ts=end_us, **common)


def _teachers(run: Recorded, start_ns: int) -> Iterator[_Event]:
    """A track behind the stages' for each teacher that came and went, with a mark per refusal."""
    stays, refusals = stays_and_refusals(run.teacher_events, run.lives)
    tracks: dict[str, int] = {}
    for name in (*(each.teacher for each in stays), *(each.teacher for each in refusals)):
        if name not in tracks:
            tracks[name] = track = 2 * run.num_stages + len(tracks)
            yield _event("M", "thread_name", track, args={"name": f"teacher {name:.80}"})
            yield _event("M", "thread_sort_index", track, args={"sort_index": track})
    for stay in stays:
        ts, dur = (stay.start_ns - start_ns) / 1000, (stay.end_ns - stay.start_ns) / 1000
        args = {"ends": stay.ends, "student": stay.student}
        yield _event("X", "teaches", tracks[stay.teacher], cat="teacher", ts=ts, dur=dur, args=args)
    for each in refusals:
        ts = (each.time_ns - start_ns) / 1000
        yield _event("i", "refused", tracks[each.teacher], s="t", ts=ts, args={"why": each.why})


def _counters(
    run: Recorded, accesses: Sequence[Access], waits: Sequence[Wait], start_ns: int
) -> Iterator[_Event]:
    """Share of time that all stages were busy or stalled, and the loss when a pass ended."""
    bins = time_bins(accesses, waits, run.num_stages)
    for place, edge in enumerate(bins.edges_ns[:-1]):
        for name, column in (("busy", BUSY), ("stalled", Reason.LOAD.value)):
            share = sum(stage[column][place] for stage in bins.shares) / run.num_stages
            ts = (edge - start_ns) / 1000
            yield _event("C", name, _PROCESS, ts=ts, args={"share": round(share, 6)})
    ends: dict[tuple[int, int], int] = {}
    for access in accesses:
        key = (access.layer.stream, access.sequence_id)
        ends[key] = max(ends.get(key, 0), access.end_ns)
    for loss in run.losses:
        end_ns = ends.get((loss.stream, loss.sequence_id))
        if end_ns is not None and abs(loss.value) < float("inf"):
            name = f"loss of stream {loss.stream}" if loss.stream else "loss"
            ts = (end_ns - start_ns) / 1000
            yield _event("C", name, _PROCESS, ts=ts, args={"loss": loss.value})


def _event(phase: str, name: str, track: int, ts: float = 0, **more: Any) -> _Event:
    return {"ph": phase, "name": name, "pid": _PROCESS, "tid": track, "ts": ts, **more}


def _track(stage: int) -> int:
    return 2 * stage


def _wait_track(stage: int) -> int:
    return 2 * stage + 1
