"""A user's module, with much that cannot be used; the tests copy it to a place of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

import naspipe as npp


def make(name, *blocks):
    return npp.Space(name, [*blocks, npp.Shared("head", lambda: nn.Linear(8, 4))])


def linear():
    return nn.Linear(8, 8)


shared = linear()
space = make("mine", npp.Shared("stem", linear, rule=npp.Lag(2)), npp.Block([linear, nn.Identity]))
tied = make("tied", npp.Shared("a", lambda: shared), npp.Shared("b", lambda: shared))
lagging_norm = make("norm", npp.Shared("stem", lambda: nn.BatchNorm1d(8), rule=npp.Lag(2)))
no_module = make("no_module", npp.Shared("stem", lambda: 3))
no_candidate = make("no_candidate", npp.Block([lambda: 3]))
broken_factory = make("broken", npp.Shared("stem", lambda: 1 / 0))
number = 3


def data(seed, y):
    draw = torch.Generator().manual_seed(seed * 1000 + y)
    return {"input": torch.randn(6, 8, generator=draw), "target": torch.arange(6) % 4}


loader = DataLoader([(torch.ones(8), 0)] * 6, batch_size=3)


def fresh(seed, y):
    return {"input": torch.rand(6, 8), "target": torch.arange(6) % 4}


def no_target(seed, y):
    return {"input": torch.ones(2, 8)}


def no_batch(seed, y):
    return [torch.ones(2, 8)]


def nothing(seed, y):
    return None


def no_arguments():
    return {}


def raises(seed, y):
    raise RuntimeError("no such row")
