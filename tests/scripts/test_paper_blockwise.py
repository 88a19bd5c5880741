"""Pipe-BD's shape, as the script of the paper's evaluation says it."""

from __future__ import annotations

import pytest

from scripts.paper import pipebd
from scripts.paper.common import Options


@pytest.fixture(scope="module")
def result():
    return pipebd.run(Options(stages=(4,), spaces=("NAS CIFAR-10",)))


@pytest.mark.long
def test_the_shape_holds(result):
    assert result.holds and "4 GPUs" in result.headlines[0].paper
    plain, split = result.rows
    assert plain["internal"] == pytest.approx(plain["ideal"], abs=0.01), "no overhead: ideal"
    assert split["free"] > split["internal"], "a whole batch pays where a smaller one costs more"


@pytest.mark.parametrize(
    ("change", "text"),
    [({"free_bubble": 0.05}, "leaves 0.050"), ({"relayed": 2.0}, "not in this order")],
)
def test_it_says_what_does_not_hold(result, change, text):
    rows = [{**result.rows[0], **change}]
    assert text in pipebd.faults(rows)[0]
