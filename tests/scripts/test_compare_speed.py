"""scripts/compare_code.py --speed: what is measured, in which order, and what is made of it."""

from __future__ import annotations

import argparse
import sys

import pytest

from naspipe.config.ids import AccessKind
from scripts import compare_code
from scripts.comparing import speed
from scripts.comparing.versions import CompareError, Version
from tests.store.fake_run import access

BEFORE, PRESENT = (Version(name, compare_code.ROOT, "") for name in ("before", "present"))


def test_both_spaces_stages_and_samplers_the_controller_and_the_simulator_are_measured():
    names = [row.name for row in speed.SPEED_ROWS]
    assert len(set(names)) == len(names) == 12
    for space in ("nlp.c1", "cv.c3"):
        for stages in ("1-stage", "2-stages"):
            for sampler in ("spaced:8", "uniform"):
                assert f"{space} {stages} {sampler}" in names
    assert {row.unit for row in speed.SPEED_ROWS} == {"steps/s", "events/s", "subnets/s"}


def test_steps_behind_the_warm_up_count():
    # 20 subnets of 1 s each, the first two of 5 s: the warm-up is these two
    starts = [0, 5, *range(10, 28)]
    records = [
        access(0, 0, y, AccessKind.FORWARD, start * 10**9, length_ns=(5 if y < 2 else 1) * 10**9)
        for y, start in enumerate(starts)
    ]
    assert speed.steps_per_second(records) == pytest.approx(1.0)
    with pytest.raises(CompareError, match="expected steps behind the warm-up"):
        speed.steps_per_second([])


def test_versions_take_turns():
    firsts = [speed.in_turn(pair, BEFORE, PRESENT)[0].name for pair in range(4)]
    assert firsts == ["before", "present", "before", "present"]


def test_medians_spread_and_the_ratio_pair_by_pair():
    row = speed.SPEED_ROWS[0]
    found = speed.summary(row, {"before": [2.0, 4.0, 8.0], "present": [3.0, 4.0, 4.0]})
    assert found["before"] == {"median": 4.0, "least": 2.0, "most": 8.0}
    assert found["ratio"] == {"median": 1.0, "least": 0.5, "most": 1.5} and found["pairs"] == 3
    assert speed.texts(found) == (
        "nlp.c1 1-stage spaced:8", "steps/s", "4.000 (2.000 to 8.000)", "4.000 (3.000 to 4.000)",
        "1.000 (0.500 to 1.500)",
    )  # fmt: skip
    assert speed.Spread(12.34, 1, 20).__str__() == "12.3 (1.0 to 20.0)"
    assert speed.Spread(80_855.9, 1, 90_000).__str__() == "80856 (1 to 90000)"


def measured(monkeypatch, capsys, *words):
    order = []

    def measure(version, row, place):
        order.append((row.name, version.name))
        if row.name == "controller 3x" and version is PRESENT:
            raise CompareError("controller 3x: present: status 1: no such class")
        return 2.0 if version is PRESENT else 1.0

    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["compare_code.py", "HEAD", "--speed", *words])
    arguments = compare_code.read_arguments()
    console = compare_code.Console(width=150)
    return order, compare_code.do_speed(arguments, (BEFORE, PRESENT), None, console)


def test_pairs_alternate_and_only_all_rows_are_kept(monkeypatch, capsys):
    order, (status, output, result) = measured(
        monkeypatch, capsys, "--pairs", "2", "--rows", "simulator", "cv.c3"
    )
    assert status == 0 and output is None and len(result["rows"]) == 6
    assert order[:2] == [
        ("cv.c3 1-stage spaced:8", "before"),
        ("cv.c3 1-stage spaced:8", "present"),
    ]
    assert order[12:14] == [(name, side) for name, side in reversed(order[:2])]
    assert {row["ratio"]["median"] for row in result["rows"]} == {2.0}


def test_what_a_version_cannot_do_is_said_and_not_measured_again(monkeypatch, capsys):
    order, (status, output, result) = measured(monkeypatch, capsys, "--pairs", "3")
    assert status == 1 and output == compare_code.ARTIFACTS / "speed.json"
    assert result["refused"] == ["controller 3x: present: status 1: no such class"]
    assert len(result["rows"]) == 11
    assert [name for name, _ in order].count("controller 3x") == 2
    assert "no such class" in capsys.readouterr().out


def test_rows_are_chosen_by_name_or_word(monkeypatch):
    def chosen(*patterns, quick=False):
        arguments = argparse.Namespace(rows=patterns or None, quick=quick)
        return [row.name for row in compare_code.chosen_rows(arguments)]

    assert chosen("07", "search-*") == ["07", "33", "34", "35"]
    assert chosen("nlp.c2", quick=True) == ["12"]
    assert chosen("nothing") == [] and len(chosen()) == 35
    speeds = compare_code.chosen_speeds(argparse.Namespace(rows=["contr*"]))
    assert [row.name for row in speeds] == ["controller unlimited", "controller 3x"]


def test_no_rows_are_an_error_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare_code.py", "HEAD", "--rows", "nothing"])
    monkeypatch.setattr(compare_code.signal, "signal", lambda *_: None)
    assert compare_code.main() == 2
    said = capsys.readouterr().err
    assert said == "compare_code: --rows: expected one row at least, found none; see --list\n"
