"""A slice of scripts/fault_storm.sh: kills at every point leave the undisturbed run's bits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from naspipe.store.compare import compare_runs
from tests.faults import ring_storm
from tests.faults.storm import (
    GROUP_POINTS,
    POINTS,
    Case,
    draw_case,
    draw_group_case,
    reference,
    run_case,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("whole"))


CASES = [
    Case("forward", "stage 0", 2, "plain", 20, restarts=True),
    Case("backward", "launcher", 2, "swapped", 20),
    Case("write", "stage 2", 4, "mirrored", 12), Case("send", "launcher", 2, "plain", 15),
    Case("shard", "stage 1", 2, "plain", 2), Case("rename", "launcher", 2, "plain", 1),
    Case("capture", "stage 0", 2, "swapped and mirrored", 5),
    Case("recovery", "stage 1", 2, "swapped", 1, restarts=True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_killed_run_ends_with_the_same_bits(tmp_path, whole, monkeypatch, case):
    with tempfile.TemporaryDirectory(prefix="np") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        done = run_case(case, tmp_path)
        lives = 1 if case.restarts else 2 + (case.point == "recovery")
        assert done["hit"] and done["ends"][-1] == 0 and len(done["ends"]) == lives
        assert len(done["recovery_seconds"]) == 1 + (case.point == "recovery")
        assert list(Path(directory).glob("naspipe*")) == [], "sockets of the killed launcher"
    (comparison,) = compare_runs([whole, tmp_path / "run"])
    assert comparison.is_identical, f"{case}: {comparison}"


GROUP_CASES = [
    Case("sum", "stage 0", 2, "swapped and mirrored", 12, groups=(2, 3)),
    Case("join", "stage 2", 1, "recompute", 9, restarts=True, groups=(3,)),
    Case("copy", "stage 3", 1, "plain", 15, groups=(4, 1)),
    Case("capture", "stage 5", 2, "swapped", 5, groups=(3, 4)),
]


@pytest.fixture(scope="module")
def whole_of_passes(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("passes"), case=GROUP_CASES[0])


@pytest.mark.parametrize("case", GROUP_CASES, ids=str)
def test_a_killed_run_on_groups_ends_with_the_same_bits(tmp_path, whole_of_passes, case):
    done = run_case(case, tmp_path)
    assert done["hit"] and done["ends"][-1] == 0
    (comparison,) = compare_runs([whole_of_passes, tmp_path / "run"])
    assert comparison.is_identical, f"{case}: {comparison}"


RING_CASES = [
    Case("bytes", "stage 0", 2, "plain", 9, restarts=True, rows=ring_storm.ROWS),
    Case("read", "stage 1", 3, "mirrored", 7, rows=ring_storm.ROWS),
]


@pytest.fixture(scope="module")
def whole_of_rings(tmp_path_factory):
    return ring_storm.reference(tmp_path_factory.mktemp("rings"))


@pytest.mark.parametrize("case", RING_CASES, ids=str)
def test_a_stage_killed_at_shared_memory_leaves_nothing_there(tmp_path, whole_of_rings, case):
    done = ring_storm.run_case(case, tmp_path)
    assert done["hit"] and done["ends"][-1] == 0
    (comparison,) = compare_runs([whole_of_rings, tmp_path / "run"])
    assert comparison.is_identical, f"{case}: {comparison}"


def test_seeds_name_every_point():
    assert {draw_case(seed).point for seed in range(20)} == set(POINTS)
    assert draw_case(7) == draw_case(7)
    assert {draw_group_case(seed).point for seed in range(20)} == set(GROUP_POINTS)
    assert {ring_storm.draw_case(seed).point for seed in range(20)} == set(ring_storm.POINTS)
