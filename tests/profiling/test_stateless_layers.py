"""Which layers keep nothing from one forward to the next."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.profiling.counts import stateless_layers
from naspipe.worker.layers.kept_state import keeps_state
from naspipe.worker.layers.layer_store import LayerStore


class Plain(nn.Module):
    """Numbers, texts and functions in attributes, and no method that stores any."""

    def __init__(self, factor=2.0, act=torch.relu, sizes=(1, 2)):
        super().__init__()
        self.factor, self.act, self.sizes, self.kind = factor, act, sizes, "plain"

    @property
    def name(self):
        return self.kind

    def forward(self, x):
        parts = [self.act(x) * self.factor for _ in self.sizes]
        return sum(parts)


class Counts(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x


class CountsForAll(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x


class Keeps(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return x


class Late(nn.Module):
    """Its buffer is filled by the first forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", None)

    def forward(self, x):
        return x


def hooked():
    module = nn.ReLU()
    module.register_forward_hook(lambda *_: None)
    return module


def graph():
    return torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))


def counting_function():
    count = 0

    def act(x):
        nonlocal count
        count += 1
        return x * count

    return act


NOTHING = [
    nn.Identity, nn.Flatten, lambda: nn.Dropout(0.1), lambda: nn.MaxPool2d(2), Plain, graph,
    lambda: nn.Sequential(nn.ReLU(), Plain(3, torch.tanh)), lambda: nn.ModuleList([nn.GELU()]),
    lambda: Keeps(torch.float32), lambda: Keeps(None),
]  # fmt: skip
SOMETHING = [
    lambda: nn.Linear(2, 2), lambda: nn.BatchNorm2d(2, affine=False), lambda: nn.LazyLinear(2),
    lambda: nn.Sequential(nn.ReLU(), nn.PReLU()), Counts, CountsForAll, Late, hooked,
    lambda: Keeps([]), lambda: Keeps({}), lambda: Keeps(torch.ones(1)), lambda: Keeps(object()),
    lambda: nn.Sequential(Counts()), lambda: Keeps(counting_function()), lambda: 1 / 0, lambda: 3,
]  # fmt: skip


def test_state_is_whatever_a_forward_may_change():
    assert [keeps_state(make()) for make in NOTHING] == [False] * len(NOTHING)
    assert [keeps_state(make()) for make in SOMETHING[:-2]] == [True] * (len(SOMETHING) - 2)


def test_they_are_known_before_the_run():
    made = []

    def large():
        made.append("begun")
        module = nn.Linear(1 << 20, 1 << 20)
        made.append("made")
        return module

    def forgiving():
        try:
            return nn.Linear(2, 2)
        except BaseException:
            return nn.Identity()

    kinds = [Block([*NOTHING, *SOMETHING], kind="all", alike=True) for _ in range(2)]
    rest = [Block([large, forgiving, nn.Identity])]
    space = Space("all", [*kinds, *rest, Shared("end", nn.Flatten)])
    before = torch.get_rng_state()
    found = stateless_layers(space)
    assert torch.equal(before, torch.get_rng_state())
    known = {(block, number) for block in (0, 1) for number in range(len(NOTHING))}
    assert found == known | {(2, 2), (3, 0)}
    assert made == ["begun"], "it is left at its first parameter"
    assert stateless_layers(space) is found
    assert next(nn.Linear(2, 2).parameters()).shape == (2, 2), "others make layers as ever"


def test_other_threads_make_layers_meanwhile():
    made = []

    def slow():
        thread = threading.Thread(target=lambda: made.append(nn.Linear(2, 2)))
        thread.start(), thread.join()
        return nn.Identity()

    assert stateless_layers(Space("slow", [Block([slow])])) == {(0, 0)}
    assert len(made) == 1


def test_a_layer_that_has_state_after_all_is_refused():
    space = Space("two", [Block([nn.Identity, lambda: nn.Linear(2, 2)])])
    store = LayerStore(space, 1, Recipe())
    store.stateless = {(0, 0), (0, 1)}
    assert store[LayerId(0, 0, 0)].version == -1
    with pytest.raises(ConfigError, match=r"layer 0.1: expected its factory to make a module with"):
        store[LayerId(0, 0, 1)]
