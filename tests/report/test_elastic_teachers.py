"""Teachers that came and went: bars, marks and counts, of made events and in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from naspipe.cli.main import main
from naspipe.distill.label_sources import LabelRecord
from naspipe.label_scheduler.label_table import Counts
from naspipe.report.chrome_trace import trace_events
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.report.teachers import Refusal, Stay, stays_and_refusals
from naspipe.store.access_log import Life
from naspipe.store.teacher_events import COUNTED, read_teacher_events, tally
from tests.report.browser import Browser, find_chromium
from tests.store.fake_run import CHAINS, FakeRun, sequential_accesses

LIFE = Life(0, 1000, 2000, 0)


def write(directory: Path, events: list[dict[str, Any]], student: int = 0) -> Path:
    lines = "".join(json.dumps(each) + "\n" for each in events)
    (directory / f"teachers-{student}.jsonl").write_text(lines)
    return directory


def event(time_ns: int, what: str, teacher: str = "", **more: Any) -> dict[str, Any]:
    return {"time_ns": time_ns, "event": what, "teacher": teacher, **more}


def counts(time_ns: int, teacher: str, **more: int) -> dict[str, Any]:
    return event(time_ns, "counts", teacher, **{**dict.fromkeys(COUNTED, 0), **more})


EVENTS = [
    event(1005, "begin", generation=0),
    event(1010, "joined", "a", seconds=0.5),
    event(1020, "joined", "b", seconds=0.5),
    event(1030, "refused", "c", why="it lies"),
    event(1100, "left", "a"),
    event(1200, "joined", "a", seconds=0.5),
    event(1300, "dismissed", "b"),
    event(1300, "refused", "b", why="garbage"),
    counts(1990, "a", asked=7, answered=6, missed=1),
    counts(1990, "b", asked=2),
    event(2050, "end", audits_missed=1, seconds_missing=0.25),
]


def test_bars_and_marks(tmp_path: Path) -> None:
    stays, refusals = stays_and_refusals(read_teacher_events(write(tmp_path, EVENTS)), [LIFE])
    assert stays == [
        Stay("0", "a", 1010, 1100, "left"),
        Stay("0", "b", 1020, 1300, "dismissed"),
        Stay("0", "a", 1200, 2000, "end"),  # no longer than the log goes
    ]
    assert refusals == [Refusal("0", "c", 1030, "it lies"), Refusal("0", "b", 1300, "garbage")]


def test_a_student_that_was_killed_and_goes_on(tmp_path: Path) -> None:
    """Its second life's clock is another one: lives are laid end to end."""
    second = [
        event(50, "begin", generation=1),
        event(60, "joined", "b", seconds=0.5),
        event(500, "end", audits_missed=0, seconds_missing=0.0),
    ]
    events = read_teacher_events(write(tmp_path, [*EVENTS[:4], *second]))
    assert [each["generation"] for each in events] == [0, 0, 0, 0, 1, 1, 1]
    stays, _ = stays_and_refusals(events, [LIFE, Life(1, 2000, 2450, 1950)])
    assert stays == [
        Stay("0", "a", 1010, 2000, "killed"),
        Stay("0", "b", 1020, 2000, "killed"),
        Stay("0", "b", 2010, 2450, "end"),
    ]


def test_a_torn_line_is_left_out_and_nothing_behind_it(tmp_path: Path) -> None:
    record = LabelRecord(tmp_path, 0, 0)
    record.event("joined", "a", seconds=1.0)
    record.close({"a": Counts(asked=3, answered=2)}, 0, 0.5)
    path = tmp_path / "teachers-0.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    LabelRecord(tmp_path, 0, 1).close({"a": Counts(asked=4)}, 1, 0.0)
    events = read_teacher_events(tmp_path)
    kinds = [each["event"] for each in events]
    assert kinds == ["begin", "joined", "counts", "begin", "counts", "end"]
    assert [each["generation"] for each in events] == [0, 0, 0, 1, 1, 1]
    assert tally(events)["by_teacher"]["a"]["asked"] == 7
    assert tally(events)["audits_missed"] == 1


def test_two_students_have_rows_of_their_own(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path / "run")
    write(run, EVENTS)
    write(run, [event(1020, "joined", "a", seconds=0.1)], student=1)
    found = run_tables(read_run(run), "run")["teachers"]
    assert found["names"] == ["group 0: a", "group 0: b", "group 0: c", "group 1: a"]
    assert found["stays"]["row"].count(3) == 1


def test_counts_are_the_manifests_where_no_events_are_left(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path / "run")
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    counted = {"by_teacher": {"a": {"asked": 5, "answered": "x"}, "b": 3}, "seconds_missing": 1.5}
    path.write_text(json.dumps({**manifest, "measured": {"teachers": counted}}))
    found = run_tables(read_run(run), "run")["teachers"]
    assert found["counts"] == [["a", 5, 0, 0, 0, 0, 0, 0]] and found["names"] == []
    assert found["seconds_missing"] == 1.5


def test_tracks_of_the_trace(tmp_path: Path) -> None:
    run = write(FakeRun().write(tmp_path / "run"), EVENTS)
    recorded = read_run(run)
    found = [each for each in trace_events(recorded) if each["tid"] >= 2 * recorded.num_stages]
    names = {each["args"]["name"] for each in found if each["name"] == "thread_name"}
    assert names == {"teacher a", "teacher b", "teacher c"}
    assert [each["args"]["why"] for each in found if each["ph"] == "i"] == ["it lies", "garbage"]
    assert sum(each["ph"] == "X" for each in found) == 3


def test_a_run_without_teachers_has_none(tmp_path: Path) -> None:
    found = run_tables(read_run(FakeRun().write(tmp_path / "run")), "run")["teachers"]
    assert found["names"] == found["counts"] == [] and found["seconds_missing"] == 0


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on PATH")
def test_in_a_browser(tmp_path: Path) -> None:
    """Bars and marks are where they were, in line with the timeline; the table has the counts."""
    run = FakeRun(accesses=[
        each._replace(start_ns=each.start_ns * 1_000_000, end_ns=each.end_ns * 1_000_000)
        for each in sequential_accesses(CHAINS)
    ]).write(tmp_path / "run")  # fmt: skip
    long = [{**each, "time_ns": each["time_ns"] * 100_000} for each in EVENTS]
    write(run, long)
    assert main(["report", str(run)]) == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(run / "report.html")
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        drawn = browser.evaluate("""document.getElementById('teachers').data
            .map((trace) => [trace.name, trace.y, trace.base || trace.x])""")
        assert ["dismissed", [1], [0.102]] in drawn
        assert ["left, or was killed", [0], [0.101]] in drawn
        assert ["refused", [2, 1], [0.103, 0.13]] in drawn
        left, width = browser.evaluate("""['teachers', 'timeline'].map((id) =>
            document.getElementById(id)._fullLayout._size).reduce((one, other) =>
            [one.l - other.l, one.w - other.w])""")
        assert abs(left) < 1 and abs(width) < 1
        rows = browser.evaluate("document.getElementById('taught').innerText")
        assert rows.split("\n")[1].split() == ["a", "7", "6", "0", "0", "0", "1", "0"]
        hint = browser.evaluate("document.getElementById('teachers-hint').innerText")
        assert "250.0 ms" in hint and "1 audits" in hint
        browser.evaluate("document.querySelector('[data-zoom=in]').click()")
        browser.wait_for("!naspipe.isDrawing && naspipe.window[0] > 0")
        ranges = browser.evaluate("""['teachers', 'timeline'].map((id) =>
            document.getElementById(id).layout.xaxis.range)""")
        assert ranges[0] == ranges[1]
        (run / "teachers-0.jsonl").unlink()
        assert main(["report", str(run)]) == 0
        browser.open(run / "report.html")
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        for name in ("teachers", "teachers-section"):
            assert browser.evaluate(f"document.getElementById('{name}').hidden") is True
        assert browser.problems() == []
