"""Sums between groups of a real run: those that came, and what the report says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.engine.events import BUFFERS, COPY, SUM, VersionArrived
from naspipe.report.recorded import Recorded, read_run
from naspipe.report.reductions import Reason, Reductions
from naspipe.report.run_tables import run_tables
from naspipe.report.summary import agreement
from naspipe.report.waits import explain_waits
from naspipe.store.event_log import read_events
from tests.equivalence import spaces
from tests.equivalence.test_groups import linear
from tests.report.browser import Browser, find_chromium

GROUPED = {"groups": 2, "record_events": True}

SLOW = {**GROUPED, "link_latency": 0.003}
"""What other stages send comes late, so that there are waits for it."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Two groups of two stages, four passes a step; it recorded what came when."""
    path = tmp_path_factory.mktemp("runs") / "grouped"
    return train(path, stages=2, execution=SLOW)


def train(path: Path, space: npp.Space | None = None, **how: Any) -> Recorded:
    npp.train(
        space or linear(), spaces.vectors, nn.CrossEntropyLoss(), steps=8, seed=3, run_dir=path,
        recipe={"passes": "accumulate:4"}, **how,
    )  # fmt: skip
    return read_run(path)


def arrivals(run: Recorded, parcel: str) -> dict[tuple[Any, ...], int]:
    """Stage, layer and version to when it came, as the stages themselves recorded it."""
    return {
        (stage, event.layer, event.version): event.time_ns
        for stage in range(run.num_stages)
        for event in read_events(run.path / "events" / f"stage-{stage}.msgpack")
        if isinstance(event, VersionArrived) and event.parcel == parcel
    }


def test_every_sum_that_came_is_one_of_the_logs(real: Recorded) -> None:
    """None is missing and none invented; each came between its two WRITEs."""
    came = arrivals(real, SUM)
    handovers = Reductions(real.accesses, real.schedule.steps).handovers
    found = {(each.joined.stage, each.joined.layer, each.given.version): each for each in handovers}
    assert found.keys() == came.keys() and len(came) == len(handovers) == 8 * 5
    for key, each in found.items():
        assert each.given.end_ns <= came[key] <= each.joined.start_ns
        assert each.own_ns <= each.joined.start_ns


def test_every_wait_for_a_copy_ends_with_one_that_came(real: Recorded) -> None:
    came = arrivals(real, COPY)
    waits = explain_waits(real.accesses, real.num_stages, real.schedule)
    copies = [each for each in waits if each.reason is Reason.COPY]
    assert came and copies
    for wait in copies:
        assert wait.blocked is not None and wait.cause is not None
        reader = wait.blocked
        arrived = came[reader.stage, reader.layer, reader.version]
        assert wait.cause.end_ns <= arrived <= reader.start_ns


def test_every_wait_for_buffers_ends_with_some_that_came(tmp_path: Path) -> None:
    """Of a space with batch normalisation; which layers have some, its checkpoint says.

    The link is slow enough that a pass stands ready before those of the pass before it are written,
    however late its process gets the processor.
    """
    slow = {**SLOW, "link_latency": 0.03}
    run = train(tmp_path / "normed", spaces.mixed(), execution=slow)
    came = arrivals(run, BUFFERS)
    assert {layer for _, layer, _ in came} <= run.ordered
    waits = explain_waits(run.accesses, run.num_stages, run.schedule)
    found = [each for each in waits if each.reason is Reason.BUFFERS]
    assert came and found
    for wait in found:
        assert wait.blocked is not None and wait.cause is not None
        arrived = came[wait.blocked.stage, wait.blocked.layer, wait.cause.sequence_id]
        assert wait.cause.end_ns <= arrived <= wait.blocked.start_ns


def test_the_tables_hold_every_sum_and_every_wait(real: Recorded) -> None:
    tables = run_tables(real, "grouped")
    json.dumps(tables, allow_nan=False)
    sums, totals = tables["sums"], tables["wait_totals_ns"]
    assert {len(column) for column in sums.values()} == {40} == {tables["numbers"]["num_sums"]}
    assert sum(route["sums"] for route in tables["routes"]) == 40
    assert set(sums["sender"]) == {0, 1} and set(sums["stage"]) == {2, 3}
    assert min(sums["start"]) > 0 and min(sums["length"]) >= 0
    waited = sum(totals["reduction"] + totals["copy"])
    assert waited > 0
    assert tables["numbers"]["reduction_ratio"] == waited / (4 * tables["end_ns"])
    assert sum(layer["reduction_ns"] for layer in tables["layers"]) == waited
    assert (tables["facts"]["groups"], tables["facts"]["passes"]) == ("2", "accumulate:4")


def test_one_group_has_no_sums_and_agrees(
    real: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of WRITEs and READs within a step depends on groups, and means nothing."""
    one = train(tmp_path / "one")
    assert agreement(real, one) == "same losses, same access order" == agreement(one, real)
    tables = run_tables(one, "one")
    assert tables["routes"] == tables["sums"]["start"] == []
    assert sum(tables["wait_totals_ns"]["reduction"] + tables["wait_totals_ns"]["copy"]) == 0
    assert main(["report", str(one.path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_trace_and_the_text_tell_of_sums(
    real: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(real.path), "--trace"]) == 0
    *paths, line = capsys.readouterr().out.splitlines()
    assert len(paths) == 2
    assert line.startswith("grouped: 40 sums of gradients went from group to group; stages waited")
    events = json.loads((real.path / "trace.json").read_text())["traceEvents"]
    began = {each["id"]: each for each in events if each["ph"] == "b"}
    ended = {each["id"]: each for each in events if each["ph"] == "e"}
    assert began.keys() == ended.keys() and len(began) == 40
    assert all(began[number]["ts"] <= ended[number]["ts"] for number in began)
    assert {each["name"] for each in began.values()} == {"sums for stage 2", "sums for stage 3"}
    arrows = [each for each in events if each["ph"] in "sf" and each["cat"] == "reduction"]
    assert len(arrows) == 80
    names = {each["name"] for each in events if each.get("cat") == "wait"}
    assert {"reduction", "copy"} <= names


DRAWN = """JSON.stringify(document.getElementById('timeline').data
    .filter((trace) => trace.meta === 'sums').map((trace) => [trace.name, trace.x.length]))"""


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on PATH")
def test_the_page_draws_a_lane_of_sums(real: Recorded, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(real.path), "-o", str(page)]) == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        drawn = dict(json.loads(browser.evaluate(DRAWN)))
        assert drawn["sum under way"] == drawn["sum leaves"] == 40
        sums = run_tables(real, "grouped")["sums"]
        assert drawn["a WRITE waits for it"] == sum(waited > 0 for waited in sums["waited"])
        lines = browser.evaluate("document.querySelectorAll('#routes tbody tr').length")
        assert lines == len(set(zip(sums["sender"], sums["stage"], strict=True)))
        reasons = browser.evaluate("document.getElementById('reasons').innerText")
        assert "reduction" in reasons and "copy" in reasons
        whole = browser.evaluate("""(() => {
            const run = naspipe.run, rows = run.sums.start.map((_, row) => row);
            return mergedSums(run, rows, run.end_ns / 1200)[0].x.length;
        })()""")
        assert 0 < whole < 40
        assert browser.problems() == []
