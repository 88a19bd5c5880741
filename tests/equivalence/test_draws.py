"""Layers, losses and backward passes that draw from any global generator: bits of the plain loop.

The generators are torch's, numpy's and Python's.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.api import training
from naspipe.machine import determinism
from naspipe.worker.blocks import segment
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop
from tests.equivalence.test_residency import LEAST
from tests.thinned import long


class Jitter(torch.autograd.Function):
    """Rounds gradients at random, as low-precision training does."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + 0.1 * random.random() + 0.1 * np.random.rand() * torch.rand(()))


class Drawn(nn.Module):
    """Draws as it is made, in its forward, and in its backward."""

    def __init__(self, width, made=np.random.rand):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 1 + random.random() + made()))

    def forward(self, x):
        kept = x if random.random() < 0.5 else functional.dropout(x, 0.2)
        return Jitter.apply(self.linear(kept) * self.scale * (1 + 0.1 * np.random.rand()))


def drawn_loss(output, target):
    noise = 0.1 * random.random() * torch.rand_like(output) * np.random.rand()
    return functional.cross_entropy(output + noise, target)


def drawn(rule):
    return npp.Space("drawn", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=rule),
        *(npp.Block([lambda: Drawn(24), nn.Identity, lambda: Drawn(24)]) for _ in range(3)),
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        long(1, {}), (2, {"recompute": True}), (4, {}), (2, {"memory_budget": LEAST}),
    ],
)  # fmt: skip
def test_draws_are_keyed(tmp_path, stages, execution):
    check(
        tmp_path, drawn(npp.Lag(2)), spaces.vectors, drawn_loss, stages=(stages,), steps=20,
        execution=execution,
    )  # fmt: skip


@pytest.mark.parametrize("left_out", ["numpy", "python", "backward"])
def test_unkeyed_draws_are_seen(tmp_path, monkeypatch, left_out):
    """Without one of the rules the same run has other bits than the plain loop."""

    def seed_draws(seed):
        state = random.getstate() if left_out == "python" else np.random.get_state()
        determinism.seed_draws(seed)
        (random.setstate if left_out == "python" else np.random.set_state)(state)

    if left_out == "backward":
        monkeypatch.setattr(segment, "backward_seed", lambda seed: seed)
    else:
        monkeypatch.setattr(segment, "seed_draws", seed_draws)
    monkeypatch.setattr(training, "check_spaces", lambda *_: [])  # which finds it before the run
    space = drawn(npp.Exact())
    run = npp.train(space, spaces.vectors, drawn_loss, steps=4, lr=0.05, run_dir=tmp_path / "run")
    oracle = plain_loop(space, spaces.vectors, drawn_loss, run, seed=0, optimizer="SGD", lr=0.05)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(run, oracle)


class Global:
    """A strategy that draws from the global generators, as scripts do."""

    def propose(self, sequence_id):
        return [random.randrange(3), int(np.random.rand() * 3), int(torch.rand(()) * 3)]

    def observe(self, sequence_id, score):
        np.random.rand()


def test_a_strategy_has_generators_of_its_own(tmp_path):
    """Neither the blocks beside it nor what was drawn before change its stream."""
    streams = []
    for stages in (1, 2):
        random.seed(stages)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        run = npp.train(
            drawn(npp.Lag(2)), spaces.vectors, drawn_loss, steps=12, stages=stages,
            sampler=Global(), run_dir=tmp_path / f"{stages}",
        )  # fmt: skip
        streams.append(run.directory.stream.read_bytes())
        assert random.getstate() == before[0], "the caller's generators are left alone"
        assert np.random.get_state()[1].tolist() == before[1]
        assert torch.get_rng_state().equal(before[2])
    assert streams[0] == streams[1]
