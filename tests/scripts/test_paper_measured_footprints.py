"""Footprints on the meta device are those of real tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.jobs.workload import Workload
from scripts.paper.measured_footprints import measure_footprints


def meta_batch(count):
    return {
        "input": torch.empty(count, 5, device="meta"),
        "target": torch.empty(count, dtype=torch.int64, device="meta"),
    }


class Both(nn.Module):
    """Hands its input on beside what it computes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 7)

    def forward(self, x):
        return self.linear(x).sigmoid(), x


class Join(nn.Module):
    def forward(self, y, x):
        return y.sum(-1, keepdim=True) * x


class Looks(nn.Module):
    """Needs a value."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def workload(*blocks):
    space = Space("mine", [*blocks, Shared("head", lambda: nn.Linear(5, 3))])
    definition = Definition(space="mine", steps=1, recipe=Recipe(optimizer="SGD"))
    return Workload(
        space=space, data=lambda seed, y: {}, loss=nn.CrossEntropyLoss(), definition=definition
    )


def test_bytes_per_sample_are_what_autograd_keeps():
    table = measure_footprints(workload(Block([Both]), Block([Join])), meta_batch)
    both, join, head = (table.candidates(block)[0] for block in range(3))
    assert both.parameter_bytes == 1024 and both.state_bytes == 1024, "two slots of 512 bytes"
    assert (both.input_bytes, both.passed_bytes) == (0, 5 * 4), "x is handed on"
    assert both.saved_bytes == 7 * 4, "the sigmoid's output"
    assert (join.input_bytes, join.passed_bytes) == ((7 + 5) * 4, 0)
    assert join.saved_bytes == 1 * 4, "the sum; y and x are inputs"
    assert head.input_bytes == 5 * 4
    assert head.saved_bytes >= 3 * 4, "the loss keeps its log-probabilities"


def test_it_agrees_with_real_tensors():
    """The same forward with values, watched by the same hooks."""
    table = measure_footprints(
        workload(Block([lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 5))])),
        meta_batch,
    )
    module = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 5))
    kept = {}
    x = torch.randn(8, 5, requires_grad=True)
    own = {t.untyped_storage().data_ptr() for t in (x, *module.parameters())}

    def see(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda t: t):
        module(x)
    real = sum(t.untyped_storage().nbytes() for t in kept.values())
    assert table.candidates(0)[0].saved_bytes == real / 8


def test_a_layer_that_needs_values_is_named():
    with pytest.raises(ConfigError, match=r"layer 0\.0: expected a layer that computes shapes"):
        measure_footprints(workload(Block([Looks])), meta_batch)
