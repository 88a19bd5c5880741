"""Every tensor of a layer lies where its parameters do: also behind a resume, and in old versions.

On torch's meta device nothing is computed, but where a tensor lies can be seen.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.ids import SequenceId, Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Lag
from naspipe.worker.layers.optimizers import PER_LAYER
from naspipe.worker.layers.own_steps import is_moved
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Placement

ELSEWHERE = torch.device("meta")


def lagging(optimizer):
    """A stem behind two steps, with batch statistics, that an older version is still read of."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    layer = StoredLayer("stem", Lag(2), module, Recipe(optimizer=optimizer), keeps_versions=True)
    for number in range(2):
        gradients = {name: torch.ones_like(p) for name, p in layer.parameters.items()}
        base = Version(number - 1)
        layer.write(gradients, SequenceId(number), base, keeps_base=True, step=number, lr=0.1)
    return layer


def places(layer):
    found = {
        name: value.device.type
        for name, value in layer.tensors()
        if isinstance(value, torch.Tensor) and (is_moved(value) or not name.startswith("optimizer"))
    }
    versions = [Version(-1), Version(0)]
    return found | {f"{v}/{name}": each.device.type for v, name, each in layer.copies(versions)}


@pytest.fixture(autouse=True)
def as_on_a_gpu():
    """A parameter stays the same object as it moves there."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("optimizer", PER_LAYER)
def test_a_layer_that_is_adopted_lies_on_one_device(optimizer):
    """As it is made, or as a resume restored it: with its optimizer's state and old versions."""
    layer = lagging(optimizer)
    assert set(places(layer).values()) == {"cpu"}
    Placement(ELSEWHERE).adopt(None, layer)
    assert set(places(layer).values()) == {"meta"}
    assert any(name.startswith("optimizer/") for name in places(layer)) or optimizer == "SGD"
