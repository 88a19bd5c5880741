"""WRITEs that let others go first: the bits of the plain loop."""

from __future__ import annotations

from itertools import pairwise

import pytest
from torch import nn

from naspipe.config.ids import AccessKind
from naspipe.config.rules import Exact, parse_rule
from naspipe.store.access_log import read_run_accesses
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
MIXED = (spaces.mixed, spaces.vectors)


def waited(run):
    """How many WRITEs did not come right behind a block or a WRITE of their own subnet.

    Only of layers that are read exactly: a version that late readers need is in a WRITE's way.
    """
    rules = run.space.rules
    by_stage = {}
    for access in read_run_accesses(run.directory.path):
        by_stage.setdefault(access.stage, []).append(access)
    return sum(
        later.kind is AccessKind.WRITE
        and isinstance(rules[later.layer.block], Exact)
        and later.sequence_id != earlier.sequence_id
        for accesses in by_stage.values()
        for earlier, later in pairwise(accesses)
    )


@pytest.mark.parametrize("order", ["critical-path", "latest-start"])
@pytest.mark.parametrize(
    ("kind", "stages", "execution", "recipe"),
    [
        (MIXED, (2, 4), {"window": 16}, {"ema": 0.9, "clip_layer_norm": 0.5}),
        ((spaces.memory, spaces.sequences), (3,), {"recompute": True, "checkpoint_every": 7}, {}),
        long((spaces.maps, spaces.images), (2,), {"checkpoint_every": 5}, {"ema": 0.9}),
        long((spaces.several, spaces.vectors), (4,), {"window": 8}, {}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, order, kind, stages, execution, recipe):
    space, data = kind
    runs = check(
        tmp_path, space(), data, LOSS, stages=stages, steps=40, optimizer="Adam", lr=0.01,
        recipe=recipe, execution={"order": order, **execution},
    )  # fmt: skip
    assert all(waited(run) for run in runs)


@pytest.mark.parametrize("text", ["lag(0..4,over=12)", long("every(3)"), long("lag(3,predict)")])
def test_layers_that_move_and_are_read_late(tmp_path, monkeypatch, text):
    """Kept back or not, a layer leaves for another stage as its last WRITE left it."""
    restless(monkeypatch)
    (run,) = check(
        tmp_path, spaces.mixed(parse_rule(text)), spaces.vectors, LOSS, stages=(3,), steps=40,
        options={"momentum": 0.9}, execution={"order": "latest-start", "window": 16},
    )  # fmt: skip
    assert waited(run)
