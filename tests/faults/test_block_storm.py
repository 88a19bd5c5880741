"""A slice of ``scripts/fault_storm.py --blockwise``: kills of blockwise distillations."""

from __future__ import annotations

import pytest

from tests.faults.block_run import STEPS, Life
from tests.faults.block_storm import (
    PLACEMENTS,
    POINTS,
    Case,
    draw_case,
    reference,
    run_case,
    verdict,
)
from tests.thinned import long


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("whole"))


CASES = [
    # The teacher's log has no checkpoint of its own; a student's relies on it.
    Case("rename", "launcher", 3, (Life(2, "pairs", 4), Life(3, "free", 2)), "recompute", 1),
    # The blocks that are ahead go back to the slowest one's cut, and are killed again there.
    Case("recovery", "a stage", 1, (Life(2, "packed", 4), Life(4, "shared", 3),
                                    Life(1, "layers", 1)), "swapped", 0),
    Case("stopping", "a stage", 6, (Life(3, "hybrid", 4), Life(2, "pairs", 4)), "plain", 3),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES[:2], long(CASES[2])], ids=str)
def test_a_killed_distillation_ends_with_the_same_bits(tmp_path, whole, case):
    done = run_case(case, tmp_path)
    assert done["hit"] and len(done["ends"]) == 2 + (case.point == "recovery")
    assert 0 < done["went_on_at"] < STEPS, "behind a checkpoint"
    assert verdict(whole, tmp_path / "run") == "IDENTICAL"


def test_seeds_name_every_point_and_placement():
    cases = [draw_case(seed) for seed in range(50)]
    assert {case.point for case in cases} == set(POINTS)
    assert {case.lives[number].placement for case in cases for number in (0, 1)} == set(PLACEMENTS)
    assert all(case.lives[0].stages != case.lives[1].stages for case in cases)
    assert all(case.lives[0].placement != case.lives[1].placement for case in cases)
    assert draw_case(7) == draw_case(7)
