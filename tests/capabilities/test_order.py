"""A dispatch order: the newest subnet first, by one registration; a run that asks for it."""

from __future__ import annotations

from torch import nn

import naspipe as npp
from naspipe.engine.builder import register_order
from tests.capabilities import simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop


class NewestFirst:
    max_run = 1

    def key(self, task, priority):
        return (-task.sequence_id, task.kind.value, task.stream, task.section)


def test_an_order_of_ones_own():
    register_order("newest", lambda streams: NewestFirst())
    stream = simulated.subnets(0)
    orders = {}
    for order in ("newest", "paper"):
        accesses = simulated.run([stream], lambda subnet: (0, 3, 6), order=order)
        first = [access for access in accesses if access.stage == 0]
        orders[order] = [(access.sequence_id, access.kind) for access in first]
    assert orders["newest"] != orders["paper"]


def test_a_run_under_it_has_the_bits_of_the_plain_loop(tmp_path):
    register_order("newest", lambda streams: NewestFirst())
    space, loss = spaces.mixed(), nn.CrossEntropyLoss()
    run = npp.train(
        space, spaces.vectors, loss, steps=12, seed=1, lr=0.05, stages=2,
        run_dir=tmp_path / "run", execution={"order": "newest"},
    )  # fmt: skip
    assert run.directory.read_manifest()["execution"]["order"] == "newest"
    loop = plain_loop(space, spaces.vectors, loss, run, seed=1, optimizer="SGD", lr=0.05)
    assert_same_bits(run, loop)
