"""A layer that goes on from a checkpoint is on its device with all that it has."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Lag
from naspipe.machine.out_of_memory import LayerUse
from naspipe.worker.layers.optimizers import PER_LAYER
from naspipe.worker.layers.own_steps import is_moved
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Placement, SwappedPlacement

LAYER = LayerId(FIRST_STREAM, 0, 0)
META = torch.device("meta")
"""Stands for a GPU: what was not moved shows, though nothing can be computed."""


class Movable(nn.Sequential):
    """Notes where it was moved: torch would replace parameters that go to the meta device."""

    where = None

    def to(self, device):
        self.where = device
        return self


def trained(optimizer):
    """A lagged layer behind two WRITEs, with a copy of the version before each."""
    module = Movable(nn.Linear(3, 4), nn.BatchNorm1d(4))
    recipe = Recipe(optimizer=optimizer, lr=0.1)
    layer = StoredLayer("stem", Lag(2), module, recipe, keeps_versions=True)
    for version in range(2):
        gradients = {name: torch.ones_like(p) for name, p in layer.parameters.items()}
        layer.write(gradients, version, layer.version, keeps_base=True, step=version, lr=0.1)
    return layer


def copies(layer):
    return {tensor.device for _, _, tensor in layer.copies([-1, 0])}


@pytest.mark.parametrize("optimizer", PER_LAYER)
def test_all_of_a_resident_layer_is_moved(optimizer):
    layer = trained(optimizer)
    Placement(META).adopt(LAYER, layer)
    assert layer.module.where == META
    state = {name: value for name, value in layer.tensors() if name.startswith("optimizer/")}
    moved = {name for name, value in state.items() if is_moved(value)}
    assert {state[name].device for name in moved} <= {META}
    assert moved or optimizer == "SGD"
    assert copies(layer) == {META}
    assert all(p.requires_grad for p in layer.parameters.values()), "gradients arrive there"


def test_a_layer_that_was_never_written_has_the_state_that_adagrad_begins_with():
    recipe = Recipe(optimizer="Adagrad", lr=0.1)
    layer = StoredLayer("head", Lag(2), Movable(nn.Linear(3, 2)), recipe)
    Placement(META).adopt(LAYER, layer)
    state = layer.optimizer.state[layer.parameters["0.weight"]]
    assert state["sum"].device == META
    assert state["step"].device.type == "cpu"


def test_older_versions_of_a_swapped_layer_are_where_their_readers_compute():
    layer = trained("Adam")
    device = SimpleNamespace(torch_device=META, name="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # host memory is not pinned here
        placement = SwappedPlacement(device, [Recipe(optimizer="Adam")], LayerUse(0), None)
        placement.adopt(LAYER, layer)
    assert copies(layer) == {META}
    assert layer.parameters["0.weight"].device.type == "cpu", "until it is loaded"


def test_the_host_is_one_block_ahead_of_its_device():
    """docs/gpus.md, "What time stamps mean": behind each block the one before it is waited for."""
    marks, waited = iter(range(9)), []
    device = SimpleNamespace(torch_device=META, mark=lambda: next(marks), wait=waited.append)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placement = SwappedPlacement(device, [Recipe()], LayerUse(0), None)
        for _ in range(3):
            placement.finish_block()
    assert waited == [None, 0, 1]
