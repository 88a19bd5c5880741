"""The trace's structure: what Perfetto needs to draw it, and that it says what the log says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from naspipe.config.ids import AccessKind
from naspipe.report.chrome_trace import trace_events, write_chrome_trace
from naspipe.report.recorded import Recorded, read_run
from tests.store.fake_run import CHAINS, FakeRun, sequential_accesses


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    """Four blocks on two stages; times that are no whole microseconds; one stall."""
    records = [
        record._replace(
            stage=record.layer.block // 2,
            start_ns=(record.start_ns + 1) * 1001,
            end_ns=(record.end_ns + 1) * 1001 - 500,
            stalled_ns=300 if place == 5 else 0,
        )
        for place, record in enumerate(sequential_accesses(CHAINS))
    ]
    return read_run(FakeRun(accesses=records, stages=2).write(tmp_path / "run"))


@pytest.fixture
def events(run: Recorded, tmp_path: Path) -> list[dict[str, Any]]:
    write_chrome_trace(tmp_path / "trace.json", run)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["displayTimeUnit"] == "ms"
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def test_every_event_has_what_its_phase_asks_for(events: list[dict[str, Any]]) -> None:
    needed = {"M": {"args"}, "X": {"dur", "cat"}, "s": {"id", "cat"}, "f": {"id", "cat", "bp"},
              "C": {"args"}}  # fmt: skip
    assert {event["ph"] for event in events} == set(needed)
    for event in events:
        assert {"name", "pid", "tid", "ts"} | needed[event["ph"]] <= event.keys()
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0


def test_what_a_write_owed_is_a_slice_within_its_own(tmp_path: Path) -> None:
    records = [
        record._replace(owed_ns=4 if record.kind is AccessKind.WRITE else 0)
        for record in sequential_accesses(CHAINS)
    ]
    made = list(trace_events(read_run(FakeRun(accesses=records).write(tmp_path / "owing"))))
    writes = [each for each in made if each.get("cat") == "write"]
    owed = [each for each in made if each.get("cat") == "weights"]
    assert [(each["tid"], each["ts"]) for each in owed] == [(w["tid"], w["ts"]) for w in writes]
    assert {each["dur"] for each in owed} == {0.004}


def test_every_record_is_a_complete_event_to_the_nanosecond(
    run: Recorded, events: list[dict[str, Any]]
) -> None:
    start = min(access.start_ns for access in run.accesses)
    found = {
        (event["tid"], round(event["ts"] * 1000), round(event["dur"] * 1000), event["name"])
        for event in events
        if event["ph"] == "X" and event["cat"] != "wait"
    }
    assert found == {
        (
            2 * access.stage,
            access.start_ns - start,
            access.end_ns - access.start_ns,
            f"{access.sequence_id}{access.kind.value} {run.labels.label(access.layer)}",
        )
        for access in run.accesses
    }


def test_slices_of_a_track_do_not_overlap(events: list[dict[str, Any]]) -> None:
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["tid"]].append((start, start + round(event["dur"] * 1000)))
    assert set(tracks) == {0, 1, 2, 3}
    for slices in tracks.values():
        ordered = sorted(slices)
        assert all(one[1] <= other[0] for one, other in pairwise(ordered))


def test_arrows_join_the_stages(run: Recorded, events: list[dict[str, Any]]) -> None:
    """Two messages a subnet: activations from stage 0 to 1, gradients back."""
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == 2 * len(CHAINS)
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != "wait"]
    for number, start in starts.items():
        end = ends[number]
        sender = [s for s in slices if s["tid"] == start["tid"]
                  and s["ts"] <= start["ts"] <= s["ts"] + s["dur"]]  # fmt: skip
        receiver = [s for s in slices if s["tid"] == end["tid"] and s["ts"] == end["ts"]]
        assert len(sender) == len(receiver) == 1
        assert sender[0]["args"]["subnet"] == receiver[0]["args"]["subnet"]
        assert end["bp"] == "e", "else the arrow would end at the slice that begins next"
        assert start["tid"] != end["tid"] and start["ts"] <= end["ts"]


def test_stalls_and_losses_are_there(events: list[dict[str, Any]]) -> None:
    assert [e["dur"] for e in events if e["ph"] == "X" and e["name"] == "load"] == [0.3]
    losses = [event["args"]["loss"] for event in events if event["name"] == "loss"]
    assert sorted(losses, reverse=True) == [2.0, 1.5, 1.25, 1.0]
