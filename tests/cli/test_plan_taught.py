"""``naspipe plan`` with a teacher: joint and own cuts, and what fills the pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naspipe.api import planning as run_plan
from naspipe.api import teacher_plans as taught_plans
from naspipe.cli.main import main
from naspipe.plan.costs import CostTable, LayerCost
from tests.cli.test_resume import RUN

STUDENT = ("plan", "moco-v3", "--data", "views:digits", "--devices", "4", "--steps", "32")
SMALL = ("--set", "data.batch_size=8")
FOLLOWS = (*STUDENT, *SMALL, "--momentum", "0.9", "--passes", "accumulate:4,accumulate:8")


@pytest.fixture(autouse=True)
def even_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on a busy machine, they may hide what the rows compare."""
    even = CostTable({(block, 0): LayerCost(1_000_000, 2_000_000, 200_000) for block in range(64)})
    monkeypatch.setattr(run_plan, "cached_profile", lambda *args, **named: even)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    speeds = [row["passes_per_second"] for row in found]
    assert speeds == sorted(speeds, reverse=True)
    for row in found:
        needed, passes = row["filled_from"], int(row["passes"].partition(":")[2] or 1)
        assert row["is_filled"] == (needed is not None and passes >= needed)
        if needed:
            enough = 3 * (row["stages"] - 1)
            assert row["ratio"] * needed >= enough > row["ratio"] * (needed - 1)
    return found


def test_one_that_follows_has_joint_cuts(capsys: pytest.CaptureFixture[str]) -> None:
    """The data have as many micro-batches of each view as steps have passes for."""
    found = rows(capsys, *FOLLOWS)
    assert {row["cuts"] for row in found} == {"joint"} and {row["views"] for row in found} == {2}
    assert {row["teachers"] for row in found} == {None}
    places = {(row["passes"], row["stages"]) for row in found}
    assert places == {(f"accumulate:{n}", stages) for n in (4, 8) for stages in (1, 2, 4)}
    now = rows(capsys, *FOLLOWS, "--set", "momentum.lag=0")
    assert all(row["filled_from"] is None for row in now if row["stages"] != 1)
    slowest, fastest = (
        min(row["bubble_ratio"] for row in each if row["stages"] == 4) for each in (now, found)
    )
    assert fastest < slowest


def test_a_frozen_one_has_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "teacher"
    assert main([*RUN, "--steps", "4", "--run-dir", str(path)]) == 0
    words = ["plan", *RUN[1:4], "--devices", "2", "--steps", "12", "--teacher", str(path)]
    found = rows(capsys, *words, "--passes", "accumulate:2,one")
    places = {(row["passes"], row["stages"], row["cuts"]) for row in found}
    assert places == {
        (passes, *each)
        for passes in ("accumulate:2", "one")
        for each in ((1, "own"), (2, "own"), (2, "joint"))
    }
    needed = {row["stages"]: row["teachers"] for row in found if row["passes"] == "one"}
    assert 1 <= needed[1] <= needed[2], "a student on two stages is faster"
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "teachers: with devices of their own" in out
    assert "fills from" in out and "r: the teacher's forward over the student's" in out


def test_a_slower_teacher_needs_more_of_its_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "teacher"
    assert main([*RUN, "--steps", "4", "--run-dir", str(path)]) == 0
    words = ["plan", *RUN[1:4], "--devices", "1", "--steps", "12", "--teacher", str(path)]
    needed = []
    for seconds in (100, 200):
        monkeypatch.setattr(taught_plans, "forward_ns", lambda *_, s=seconds: s * 10**9)
        needed.append(rows(capsys, *words)[0]["teachers"])
    assert needed[0] > 100 and needed[1] in (2 * needed[0], 2 * needed[0] - 1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--budget", "3x"), "--budget: expected nothing beside a teacher"),
        (("--samplers", "fair"), "--samplers: expected nothing beside a teacher"),
        (("--costs", "table5"), "--costs: expected nothing beside a teacher"),
        (("--teacher-subnet", "last"), "expected --teacher RUN with it"),
        (("--teacher", "nowhere"), "expected no momentum teacher beside it"),
        (("--passes", "accumulate:3"), "expected passes=accumulate:"),
        (("--set", "teacher_cuts=own"), "teacher_cuts=own: expected joint ones"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    assert main([*FOLLOWS, *words]) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1
