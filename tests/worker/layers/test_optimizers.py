"""Where what an optimizer keeps lies: as torch has it, also behind a resume."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from naspipe.config.recipe import Recipe
from naspipe.worker.layers.optimizers import BESIDE, PER_LAYER, make_optimizer

ELSEWHERE = torch.device("meta")


@pytest.mark.parametrize("name", PER_LAYER)
def test_numbers_go_where_a_first_step_makes_them(name):
    """Some come from a checkpoint, in host memory, to a layer that is on another device."""
    parameter = torch.nn.Parameter(torch.zeros(2, 2, device=ELSEWHERE))
    optimizer = make_optimizer(Recipe(optimizer=name), [parameter])
    optimizer.state[parameter] |= {"number": torch.tensor(1.0), "count": 3}
    optimizer.step()  # without a gradient nothing else happens
    state = optimizer.state[parameter]
    assert state["count"] == 3
    assert state["number"].device == (ELSEWHERE if name in BESIDE else torch.device("cpu"))


@pytest.mark.parametrize("name", sorted(set(PER_LAYER) - {"ASGD"}))
def test_all_others_make_them_in_host_memory(name):
    """What :data:`BESIDE` says, asked of torch: a step on a device that computes nothing."""
    parameter = torch.nn.Parameter(torch.zeros(2, 2, device=ELSEWHERE))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer(Recipe(optimizer=name), [parameter])
    with suppress(NotImplementedError, RuntimeError):
        optimizer.step()  # some look at a value; their state is made by then
    values = [each for each in optimizer.state[parameter].values() if torch.is_tensor(each)]
    assert all(each.device.type == "cpu" for each in values if not each.dim())
