"""Layers copied for a checkpoint: every byte, under its name, also after the layer has changed."""

from __future__ import annotations

import pytest
import torch
from isal.isal_zlib import crc32
from torch import nn

from naspipe.config.ids import INITIAL
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact, Lag
from naspipe.worker.checkpoints.capturing import Capturer
from naspipe.worker.checkpoints.restored import Captured, CaptureMemory, dtype_name
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.oracle import bits


def linear():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def with_buffers():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def channels_last():
    return nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)


def mixed():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))


MODULES = [linear, with_buffers, channels_last, mixed, nn.ReLU]
SGD = Recipe(optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9})
RECIPES = [Recipe(optimizer="SGD", lr=0.1), SGD, Recipe(optimizer="Adam", lr=0.1)]


def write(stored, subnet, names=None):
    """One WRITE with gradients of ones, of some of the parameters only where they are named."""
    gradients = {
        name: torch.ones_like(parameter)
        for name, parameter in stored.parameters.items()
        if names is None or name in names
    }
    stored.write(gradients, subnet, stored.version, False, int(subnet), 0.1)


def captured(capturer, stored, versions):
    """What is captured: the snapshot, and of each dtype the listing with the bytes."""
    into = Captured(CaptureMemory(), lambda block: None)
    snapshot = capturer.capture(stored, versions, into)
    into.end()
    rest = {size: b"".join(data) for size, data in into.rest.items()}
    found = []
    for listing, crc in snapshot.tensors:
        data, rest[listing.item_bytes] = (
            rest[listing.item_bytes][: listing.nbytes],
            rest[listing.item_bytes][listing.nbytes :],
        )
        assert crc == crc32(data)
        found.append((listing, data))
    assert not any(rest.values())
    return snapshot, found


def check(capturer, stored):
    """What is captured is what the layer holds, and stays so when the layer changes."""
    state = dict(stored.tensors())
    expected = {
        name: (dtype_name(value.dtype), *bits(value)[1:])
        for name, value in state.items()
        if torch.is_tensor(value)
    }
    snapshot, pieces = captured(capturer, stored, (stored.version,))
    found = {}
    for listing, data in pieces:
        start = 0
        for name, shape in listing.tensors:
            end = start + len(expected[name][2])
            found[name] = (listing.dtype, tuple(shape), data[start:end])
            start = end
    assert found == expected
    assert set(snapshot.strides) == {n for n, v in state.items() if not v.is_contiguous()}
    return snapshot


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("recipe", RECIPES, ids=["SGD", "momentum", "Adam"])
def test_what_is_captured_is_what_the_layer_holds(module, recipe):
    stored, capturer = StoredLayer("0.0", Exact(), module(), recipe), Capturer()
    check(capturer, stored)
    for subnet in range(3):
        write(stored, subnet)
        check(capturer, stored)


def test_state_that_comes_later_is_captured():
    """Of one parameter after another, and a moving average beside it."""
    stored, capturer = StoredLayer("0.0", Exact(), linear(), SGD), Capturer()
    for subnet, name in enumerate(stored.parameters):
        write(stored, subnet, {name})
        assert len(check(capturer, stored).tensors[0][0].tensors) == 4 + subnet + 1
    for parameter in stored.parameters.values():
        stored.optimizer.state[parameter]["average"] = parameter.detach().clone()
    assert len(check(capturer, stored).tensors[0][0].tensors) == 12


def test_a_buffer_that_comes_later_is_captured():
    stored, capturer = StoredLayer("0.0", Exact(), linear(), SGD), Capturer()
    check(capturer, stored)
    stored.module[1].register_buffer("seen", torch.ones(5))
    check(capturer, stored)


def test_parameters_that_moved_are_captured_where_they_are():
    """As the layers of a stage with a memory budget do."""
    stored, capturer = StoredLayer("0.0", Exact(), linear(), SGD), Capturer()
    check(capturer, stored)
    for parameter in stored.parameters.values():
        parameter.data = parameter.data * 2 + 1
    check(capturer, stored)


def test_layers_alike_share_their_names():
    capturer = Capturer()
    snapshots = [
        check(capturer, StoredLayer(f"0.{number}", Exact(), linear(), SGD)) for number in range(2)
    ]
    assert snapshots[0].tensors[0][0] is snapshots[1].tensors[0][0]


def test_older_versions_come_with_their_parameters():
    stored, capturer = StoredLayer("0.0", Lag(1), linear(), SGD, keeps_versions=True), Capturer()
    stored.write(
        {n: torch.ones_like(p) for n, p in stored.parameters.items()}, 0, INITIAL, True, 0, 1
    )
    bound = stored.bind(INITIAL)
    with bound.in_place():
        older = {n: bits(p) for n, p in bound.parameters.items()}
    _, [(listing, data)] = captured(capturer, stored, (INITIAL, 0))
    names = [name for name, _ in listing.tensors]
    assert [n for n in names if n.startswith("version/")] == [f"version/-1/{n}" for n in older]
    assert data.endswith(b"".join(value[2] for value in older.values()))
    assert not capturer._listings, "the next checkpoint has versions of other names"
