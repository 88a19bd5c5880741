"""Layers with bounded staleness whose code reaches parameters other than through the module.

A list of parameters, a hook with a parameter, a function that keeps one, activation checkpointing
in the forward (which reads parameters during the backward): all of them read the version that the
pass reads, on any number of stages.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import naspipe as npp
from naspipe.config.rules import parse_rule
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.thinned import long


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(32, 32), nn.Linear(32, 32), reentrant

    def inner(self, x):
        return self.b(torch.tanh(self.a(x)))

    def forward(self, x):
        return x + checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(32, 32) / 6 for _ in range(2))
        self.plain = [*self.weights]

    def forward(self, x):
        for weight in self.plain:
            x = x + torch.tanh(x @ weight)
        return x


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(32, 32), nn.Parameter(torch.ones(32))
        self.linear.register_forward_hook(self.scaled)

    def scaled(self, module, inputs, output):
        return output * self.scale

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Tied(nn.Module):
    """One weight in two modules, which autograd saves as itself and as a view."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.b.weight = self.a.weight

    def forward(self, x):
        x = x * self.a.weight[0] + self.b(torch.tanh(self.a(x)))
        return functional.linear(x, self.a.weight.t() * self.a.weight)


WAYS = {
    "checkpoint": lambda: Checkpointed(False),
    "reentrant": lambda: Checkpointed(True),
    "list": Listed,
    "hook": Hooked,
    "tied": Tied,
    "lstm": lambda: Recurrent(),
}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 32, batch_first=True)

    def forward(self, x):
        return x + self.lstm(x.unsqueeze(1))[0].squeeze(1)


def space_of(way, rule):
    """The layer is stale in the middle: several passes read several versions of it at a time."""
    choice = [lambda: nn.Linear(32, 32), lambda: nn.Sequential(nn.Linear(32, 32), nn.Tanh())]
    return npp.Space(
        f"ways-{way}",
        [
            npp.Shared("stem", lambda: nn.Linear(16, 32), rule=npp.Lag(2)),
            npp.Block(choice),
            npp.Shared("way", WAYS[way], rule=parse_rule(rule)),
            npp.Block(choice),
            npp.Shared("head", lambda: nn.Linear(32, 10), rule=npp.Lag(2)),
        ],
    )


@pytest.mark.parametrize("way", WAYS)
def test_every_way_reads_the_version_of_the_pass(tmp_path, way):
    check(
        tmp_path, space_of(way, "lag(2)"), spaces.vectors, nn.CrossEntropyLoss(), stages=(1, 2),
        steps=16, lr=0.5,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["reentrant", long("checkpoint"), "list", long("hook")])
@pytest.mark.parametrize("rule", ["lag(2,predict)", long("every(3)")])
def test_with_recompute_a_budget_and_other_rules(tmp_path, way, rule):
    check(
        tmp_path, space_of(way, rule), spaces.vectors, nn.CrossEntropyLoss(), stages=(2,),
        steps=16, lr=0.1, options={"momentum": 0.9},
        execution={"recompute": True, "memory_budget": "0.001x"},
    )  # fmt: skip


def test_in_steps_of_several_passes_on_two_groups(tmp_path):
    check(
        tmp_path, space_of("reentrant", "lag(1)"), spaces.vectors, nn.CrossEntropyLoss(),
        stages=(2,), steps=8, lr=0.1, recipe={"passes": "accumulate:4"}, execution={"groups": 2},
    )  # fmt: skip
