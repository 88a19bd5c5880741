"""What runs on groups leave: logs of earlier lives, validations, weights for a search."""

from __future__ import annotations

import time

import pytest
from torch import nn

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.equivalence.test_groups import linear
from tests.faults.helpers import Calm, Ends, fail

LOSS = nn.CrossEntropyLoss()


def late(seed, sequence_id):
    """The first group's second pass of each step comes behind the second group's passes."""
    time.sleep(0.1 if sequence_id % 4 == 1 else 0)
    return spaces.vectors(seed, sequence_id)


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_without_buffers_were_passed_in_any_order(tmp_path, groups):
    """Passes of several groups; a life on one group must not ask for an order of theirs."""

    def train(data, groups, **kw):
        return npp.train(
            linear(), data, LOSS, steps=8, seed=1, lr=0.05, recipe={"passes": "accumulate:4"},
            run_dir=tmp_path / "run", execution={"checkpoint_every": 2, "groups": groups}, **kw,
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError, match="injected"):
        train(Ends(late, 22, fail, tmp_path / "ended"), 2)
    run = train(Calm(spaces.vectors), groups, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05,
        passes="accumulate:4",
    )  # fmt: skip
    assert_same_bits(run, oracle)


def test_validation_on_the_way_and_search_afterwards(tmp_path):
    """The same scores, whoever trained."""
    runs = [
        npp.train(
            spaces.mixed(),
            spaces.vectors,
            LOSS,
            steps=6,
            seed=1,
            stages=2,
            lr=0.02,
            run_dir=tmp_path / str(groups),
            recipe={"passes": "accumulate:2"},
            execution={"groups": groups, "validate_every": 2, "validate_batches": 2},
            held_out=spaces.vectors,
        )
        for groups in (1, 2)
    ]
    assert runs[0].validations == runs[1].validations and len(runs[0].validations) == 3
    found = [
        npp.search_subnets(
            run,
            spaces.vectors,
            LOSS,
            held_out=spaces.vectors,
            strategy="random",
            budget=4,
            validate=2,
        )
        for run in runs
    ]
    scores = [[each.scores.loss for each in search.candidates] for search in found]
    assert scores[0] == scores[1] and len(scores[0]) == 4
