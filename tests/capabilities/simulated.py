"""Pipelines on the virtual clock for these tests: random times, and what every log must show."""

from __future__ import annotations

import random

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import ONE_PASS
from naspipe.config.wiring import PLAIN
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.engine.invariants import violations
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts

BLOCKS = 6


def subnets(stream, count=16, blocks=BLOCKS, seed=3):
    draw = random.Random(seed + stream)
    return [
        Subnet(stream, y, tuple(draw.randrange(2) for _ in range(blocks))) for y in range(count)
    ]


def run(
    streams,
    partition_of,
    *,
    wiring=PLAIN,
    seed=0,
    order="paper",
    stages=2,
    steps=ONE_PASS,
    costs=None,
):
    """All accesses of streams of subnets, checked against the stream alone."""
    rules = [[Exact()] * len(stream[0].chain) for stream in streams]
    history = new_history(rules, wiring)
    controllers = [
        build_controller(
            stage, rules, order=order, starts_partly_clear=True, history=history, wiring=wiring,
            steps=steps,
        )
        for stage in range(stages)
    ]  # fmt: skip

    def admitted(stream, y):
        subnet = streams[stream][y]
        return subnet, Partition(partition_of(subnet)), None, wiring.of(stream).is_trained

    def admissions():
        return [build_admission("csp", len(stream), window=4, steps=steps) for stream in streams]

    stages = simulate(admitted, controllers, costs or RandomCosts(seed), admissions)
    accesses = [access for each in stages for access in each]
    for number, stream in enumerate(streams):
        own = [access for access in accesses if access.layer.stream == number]
        is_trained = wiring.of(number).is_trained
        broken = violations(own, rules[number], stream, steps=steps, is_trained=is_trained)
        assert list(broken) == []
    return accesses
