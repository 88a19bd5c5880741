"""A placement in which a stage has no block of some subnets, or of any."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.partition import make_partition
from naspipe.config.steps import Steps
from naspipe.plan.partitions import register_placement
from tests.capabilities import simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.faults.helpers import assert_identical

SEED, LOSS = 1, nn.CrossEntropyLoss()
ALWAYS = {2: [(0, 0, 8)], 3: [(0, 4, 4, 8)]}
AT_TIMES = {2: [(0, 0, 8), (0, 4, 8), (0, 8, 8)], 3: [(0, 0, 0, 8), (0, 3, 3, 8), (0, 2, 8, 8)]}


def placed(bounds):
    def placement(subnets, is_shared, costs, num_stages):
        partitions = [make_partition(each) for each in bounds[num_stages]]
        return lambda subnet: partitions[subnet.sequence_id % len(partitions)]

    return placement


@pytest.mark.parametrize("bounds", [ALWAYS, AT_TIMES], ids=["always", "at times"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("recipe", [{}, {"clip_global_norm": 0.5}], ids=["plain", "gated"])
def test_the_bits_are_those_of_the_plain_loop(tmp_path, stages, bounds, recipe):
    register_placement("holes", placed(bounds))
    space = spaces.mixed(front=npp.Exact())
    run = npp.train(
        space, spaces.vectors, LOSS, steps=12, seed=SEED, lr=0.05, optimizer="SGD", stages=stages,
        run_dir=tmp_path / "run", recipe=recipe,
        execution={"partition": "holes", "checkpoint_every": 5},
    )  # fmt: skip
    loop = plain_loop(
        space, spaces.vectors, LOSS, run, seed=SEED, optimizer="SGD", lr=0.05, **recipe
    )
    assert_same_bits(run, loop)


def test_a_stage_without_a_layer_needs_no_memory(tmp_path):
    """Of a budget in subnets it gets nothing, and is none the worse for it."""
    register_placement("holes", placed(ALWAYS))
    space = spaces.mixed()
    runs = [
        npp.train(
            space, spaces.vectors, LOSS, steps=8, seed=SEED, lr=0.05, optimizer="SGD", stages=2,
            run_dir=tmp_path / f"run-{len(budget)}", execution={"partition": "holes", **budget},
        )
        for budget in ({}, {"memory_budget": "1x"})
    ]  # fmt: skip
    assert_identical(*runs)


@pytest.mark.parametrize("steps", [Steps(), Steps(2, is_gated=True), Steps(3, distills=True)])
def test_it_runs_in_the_simulator(steps):
    stream = simulated.subnets(0, count=18)
    bounds = [(0, 0, 6, 6), (0, 2, 2, 6), (0, 6, 6, 6), (0, 0, 0, 6)]
    for seed in range(5):
        simulated.run(
            [stream], lambda s: bounds[steps.step(s.sequence_id) % 4], seed=seed, stages=3,
            steps=steps,
        )  # fmt: skip
