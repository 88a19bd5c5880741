"""Groups of stages: the bits of the plain loop, however many compute the passes of a step."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless

LOSS = nn.CrossEntropyLoss()
ALL = {"clip_global_norm": 1.0, "ema": 0.9}


@pytest.mark.parametrize(
    ("groups", "stages", "passes", "more", "execution"),
    [
        (2, (1, 2), 4, {}, {}),
        (2, (1, 2), 4, ALL, {"recompute": True}),
        (3, (1,), 4, {}, {"window": 32}),
        (4, (1,), 4, ALL, {"window": 8}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, monkeypatch, groups, stages, passes, more, execution):
    """Batch normalisation, dropout, absent gradients, a lagging stem; layers on the move."""
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=stages, steps=8, lr=0.02,
        options={"momentum": 0.9}, recipe={"passes": f"accumulate:{passes}", **more},
        execution={"groups": groups, **execution},
    )  # fmt: skip


@pytest.mark.parametrize("head", [npp.Lag(1), npp.Frozen(), npp.Exact()])
def test_adam_and_shared_layers_of_every_rule(tmp_path, head):
    check(
        tmp_path, spaces.mixed(npp.Lag(2), head), spaces.vectors, LOSS, stages=(2,), steps=8,
        optimizer="Adam", lr=0.01, recipe={"passes": "accumulate:3"}, execution={"groups": 2},
    )  # fmt: skip
