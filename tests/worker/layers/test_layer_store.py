"""Layers are made when they are needed; of those that left, the last few keep their modules."""

from __future__ import annotations

import pytest
from torch import nn

from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.worker.layers.layer_store import KEPT_AWAY, LayerStore

WIDTH = KEPT_AWAY + 3


def layer(candidate):
    return LayerId(FIRST_STREAM, 0, candidate)


@pytest.fixture
def told():
    """What a store told of its layers."""
    return []


@pytest.fixture
def store(told):
    space = Space("wide", [Block([lambda: nn.Linear(2, 2)] * WIDTH)])
    return LayerStore(
        space, 0, Recipe(),
        on_made=lambda layer, stored: told.append(("made", layer.candidate)),
        on_dropped=lambda layer: told.append(("dropped", layer.candidate)),
    )  # fmt: skip


def test_what_left_first_is_dropped_first(store, told):
    for candidate in range(WIDTH):
        store.make(layer(candidate))
    told.clear()
    for candidate in reversed(range(WIDTH)):
        store.leave(layer(candidate))
    assert told == [("dropped", WIDTH - 1), ("dropped", WIDTH - 2), ("dropped", WIDTH - 3)]
    assert store.items() == []


def test_a_layer_that_came_back_is_not_dropped(store, told):
    for candidate in range(WIDTH):
        store.make(layer(candidate))
    first = store[layer(0)]
    store.leave(layer(0))
    assert store.come_back(layer(0)) is first
    told.clear()
    for candidate in range(1, WIDTH):
        store.leave(layer(candidate))
    assert told == [("dropped", 1), ("dropped", 2)]
    assert store.items() == [(layer(0), first)]


def test_what_was_dropped_is_made_anew_only_to_come_back(store, told):
    for candidate in range(WIDTH):
        store.make(layer(candidate))
    first = store[layer(0)]
    for candidate in range(WIDTH):
        store.leave(layer(candidate))
    told.clear()
    store.prepare(layer(0))
    assert not told
    assert store.find(layer(0)) is None
    with pytest.raises(InvariantError, match="on another stage"):
        store.make(layer(0))
    again = store.come_back(layer(0))
    assert again is not first
    assert told == [("made", 0)]
    assert again.digest() == first.digest()
    assert store.items() == [(layer(0), again)]


def test_layers_made_ahead_are_made_once(store, told):
    store.prepare(layer(1))
    store.prepare(layer(1))
    assert told == [("made", 1)]


def test_parameters_of_a_dropped_layer_are_forgotten(monkeypatch):
    """Its parameter belongs to nobody then; while it is kept, another layer may not have it."""
    monkeypatch.setattr("naspipe.worker.layers.layer_store.KEPT_AWAY", 1)
    tied = nn.Linear(2, 2)
    space = Space("tied", [Block([lambda: tied, lambda: tied, lambda: nn.Linear(2, 2)])])
    store = LayerStore(space, 0, Recipe())
    store.make(layer(0))
    store.leave(layer(0))
    with pytest.raises(ConfigError, match="share one parameter"):
        store.make(layer(1))
    store.make(layer(2))
    store.leave(layer(2))
    store.make(layer(1))
