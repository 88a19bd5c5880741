"""TSPipe's table by its shape, simulated."""

from __future__ import annotations

import copy

import pytest

from scripts.paper import tspipe
from scripts.paper.common import Options

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tspipe, "BLOCKS", 32)  # enough for two stages
        return tspipe.run(Options(stages=(2,)))


def test_the_shape_holds(result):
    assert result.holds and len(result.rows) == 8
    full = [row for row in result.rows if row["is_filled"]]
    assert full and all(row["one_old"] == pytest.approx(1.0, abs=0.01) for row in full)
    assert all(row["model_parallel"] < row["gpipe"] <= row["one_old"] for row in result.rows)
    said = {line.what: line.paper for line in result.headlines}
    assert said["one step old over GPipe, 2 stages"] == "TSPipe, 8 GPUs: 1.25 to 1.88"


@pytest.mark.parametrize("broken", ["one_old", "frozen"])
def test_what_is_not_so_is_said(result, broken):
    rows = copy.deepcopy(list(result.rows))
    rows[-1][broken] -= 0.1
    assert tspipe.faults(rows)
