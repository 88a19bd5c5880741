"""Bits equal to the plain loop's on 1 to 4 stages, for everything that could break them.

Where three factors meet, every pair of their values is trained, not every triple.
"""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.thinned import long

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}


@pytest.mark.parametrize(
    ("recompute", "optimizer", "options", "stages"),
    [
        long(False, "SGD", MOMENTUM, (1, 4)), (True, "SGD", MOMENTUM, (2,)),
        long(False, "Adam", None, (2,)), (True, "Adam", None, (1, 4)),
    ],
)  # fmt: skip
def test_dropout_batchnorm_and_no_parameters(tmp_path, recompute, optimizer, options, stages):
    check(
        tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=24, stages=stages,
        optimizer=optimizer, options=options, lr=0.01, execution={"recompute": recompute},
    )  # fmt: skip


RULES = [npp.Exact(), npp.Frozen(), npp.Lag(0), npp.Lag(1), npp.Lag(5)]
PLACES, STAGES = ["front", "end", "both"], [1, 2, 4]


@pytest.mark.parametrize("rule", range(len(RULES)), ids=lambda n: str(RULES[n]))
@pytest.mark.parametrize("place", range(len(PLACES)), ids=lambda n: PLACES[n])
def test_shared_layers_under_each_rule(tmp_path, rule, place):
    stages = STAGES[(rule + place) % len(STAGES)]
    front = RULES[rule] if PLACES[place] != "end" else npp.Lag(2)
    end = RULES[rule] if PLACES[place] != "front" else npp.Exact()
    check(
        tmp_path, spaces.mixed(front, end), spaces.vectors, nn.CrossEntropyLoss(),
        stages=(stages,), steps=20, options=MOMENTUM, sampler="spaced:3",
    )  # fmt: skip


@pytest.mark.parametrize("recompute", [long(False), True])
def test_blocks_that_pass_several_tensors(tmp_path, recompute):
    check(
        tmp_path, spaces.several(), spaces.vectors, nn.CrossEntropyLoss(),
        execution={"recompute": recompute},
    )  # fmt: skip


@pytest.mark.parametrize("recompute", [long(False), True])
def test_blocks_that_pass_what_is_conjugated_when_it_is_read(tmp_path, recompute):
    check(
        tmp_path, spaces.spectra(), spaces.vectors, nn.CrossEntropyLoss(), stages=(1, 4),
        execution={"recompute": recompute},
    )  # fmt: skip


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_tensor_read_twice_by_every_block(tmp_path, recompute, bf16):
    check(
        tmp_path, spaces.memory(), spaces.sequences, nn.CrossEntropyLoss(), bf16=bf16,
        stages=(1, 4) if recompute is bf16 else (2,),
        optimizer="Adam", lr=1e-3, execution={"recompute": recompute},
    )  # fmt: skip


@pytest.mark.parametrize("recompute", [long(False), True])
def test_channels_last_maps(tmp_path, recompute):
    check(
        tmp_path, spaces.maps(), spaces.images, nn.CrossEntropyLoss(), options=MOMENTUM, lr=0.02,
        execution={"recompute": recompute},
    )  # fmt: skip


def test_rate_from_the_sequence_id(tmp_path):
    space = spaces.mixed()
    run = npp.train(
        space, spaces.vectors, nn.CrossEntropyLoss(), steps=30, seed=1, lr=0.1, stages=3,
        run_dir=tmp_path / "run", recipe={"schedule": "linear", "warmup_steps": 5},
    )  # fmt: skip
    from tests.equivalence.harness import assert_same_bits, plain_loop

    def rate(y):
        return 0.1 * (y + 1) / 5 if y < 5 else 0.1 * (1.0 - (y - 5) / 25)

    loss = nn.CrossEntropyLoss()
    oracle = plain_loop(space, spaces.vectors, loss, run, seed=1, optimizer="SGD", lr=rate)
    assert_same_bits(run, oracle)
