"""A small space as its stages compute it: real layers and blocks, and the plain loop beside."""

from __future__ import annotations

import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.ids import FIRST_STREAM, LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact
from naspipe.config.space import Space
from naspipe.engine.events import Planned
from naspipe.jobs.workload import Workload
from tests.equivalence.harness import oracle_of

LOSS = nn.CrossEntropyLoss()
LR, SEED = 0.1, 1
MOMENTUM = {"momentum": 0.9}
PARTITION = Partition((0, 2, 4))
"""The stem and a block on stage 0, a block and the head on stage 1."""
CHAINS = [(0, 0, 0, 0), (0, 1, 1, 0), (0, 0, 1, 0), (0, 1, 0, 0)]
"""Candidates of each block, subnet by subnet."""


class Residual(nn.Module):
    """Draws, keeps statistics, and counts its forwards."""

    forwards = 0

    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Dropout(0.3)

    def forward(self, x):
        Residual.forwards += 1
        return x + self.drop(self.linear(self.norm(x)))


class Stash(torch.autograd.Function):
    """Multiplies by a weight, of which it keeps the memory in its own way."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.factor = weight.detach()
        return x * ctx.factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Stashing(Residual):
    """Autograd does not know of all that its backward needs."""

    def forward(self, x):
        return super().forward(Stash.apply(x, self.linear.bias))


class Lending(Residual):
    """Hands on a part of its weight."""

    def forward(self, x):
        kept = super().forward(x)
        return self.linear.weight[: len(kept)]


def space():
    return Space("small", [
        Shared("stem", lambda: nn.Linear(4, 6), rule=Exact()),
        *(Block([Residual, lambda: nn.Linear(6, 6)]) for _ in range(2)),
        Shared("head", lambda: nn.Linear(6, 3), rule=Exact()),
    ])  # fmt: skip


def batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(5, 4, generator=draw),
        "target": torch.randint(0, 3, (5,), generator=draw),
    }


def workload(data=batches, **recipe):
    own = Recipe(optimizer="SGD", lr=LR, optimizer_options=MOMENTUM, **recipe)
    return Workload.of(
        space(), data, LOSS, recipe=own, seed=SEED, steps=len(CHAINS), sampler="uniform"
    )


def planned(subnets=4):
    return [
        Planned(Subnet(FIRST_STREAM, y, chain), PARTITION)
        for y, chain in enumerate(CHAINS[:subnets])
    ]


def layer(subnet, block):
    """A subnet's layer."""
    return LayerId(FIRST_STREAM, block, CHAINS[subnet][block])


def plain_loop(subnets=4):
    """The oracle after so many subnets."""
    oracle = oracle_of(space(), SEED, "SGD", LR, MOMENTUM)
    for y, chain in enumerate(CHAINS[:subnets]):
        oracle.step(y, chain, batches(SEED, y), LOSS)
    return oracle
