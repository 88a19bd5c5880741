"""What a run says of itself while it goes: a bar, lines, or nothing."""

from __future__ import annotations

import re

import pytest

from naspipe.api.progress import TrainingProgress
from naspipe.cli.main import main

SMALL = "tests.faults.small_space"
RUN = ["train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--steps", "12"]


def test_lines_in_a_log(tmp_path, capsys):
    assert main([*RUN, "--run-dir", str(tmp_path / "run"), "--log-every", "0"]) == 0
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 12 and said.out == f"{tmp_path / 'run'}\n"
    line = r"mixed on 1 stage  (\d+)/12  \d+\.\d steps/s  loss \d\.\d{4}(  bubble 0\.\d\d)?  "
    found = [re.fullmatch(line + r"0:00:\d\d left", each) for each in lines]
    assert [int(each[1]) for each in found if each] == list(range(1, 13))
    assert lines[-1].endswith("  0:00:00 left")


def test_without_a_terminal_the_end_is_said_at_least(tmp_path, capsys):
    assert main([*RUN, "--run-dir", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err.count("\n") == 1


def test_passes_are_counted_as_such(tmp_path, capsys):
    words = ["--run-dir", str(tmp_path / "run"), "--set", "passes=accumulate:2", "--steps", "3"]
    assert main([*RUN, *words]) == 0
    assert re.search(r"  6/6  \d+\.\d passes/s  ", capsys.readouterr().err)


def test_quiet(tmp_path, capsys):
    words = ["--run-dir", str(tmp_path / "run"), "--quiet", "--log-every", "0"]
    assert main([*RUN, *words]) == 0
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    assert main([*RUN, "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "12/12" in said and "steps/s  loss" in said and "0:00:00" in said
    assert "left" not in said


def test_what_is_done_already_is_no_speed(capsys, monkeypatch):
    """A run that goes on at step 90 of 100 and takes a step a second has ten seconds left."""
    now = [0.0]
    monkeypatch.setattr("naspipe.api.progress.time.monotonic", lambda: now[0])
    with TrainingProgress("run", 100, every_seconds=0.5) as progress:
        progress.on_begin(1, [90])
        for y in range(90, 93):
            now[0] += 1.0
            progress.on_loss(0, y, 1.5)
        progress.on_validation(0, 92, {"top1": 0.25, "loss": 2.0})
        progress.on_note("a note [of] some kind")
    assert capsys.readouterr().err.splitlines() == [
        "run  91/100  1.0 steps/s  loss 1.5000  0:00:09 left",
        "run  92/100  1.0 steps/s  loss 1.5000  0:00:08 left",
        "run  93/100  1.0 steps/s  loss 1.5000  0:00:07 left",
        "run  validation after 93 steps  top1 0.2500  loss 2.0000",
        "naspipe: a note [of] some kind",
    ]


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon"])
def test_what_is_no_time(seconds, capsys):
    assert main([*RUN, "--log-every", seconds]) == 2
    assert f"expected seconds, 0 or more, found '{seconds}'" in capsys.readouterr().err
