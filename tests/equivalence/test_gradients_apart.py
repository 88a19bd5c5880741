"""A parameter's gradient to which torch gave the memory of what goes back along the chain."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.oracle import PlainLoop

LOSS = nn.CrossEntropyLoss()
ROWS, WIDTH = 12, 24


class Shift(nn.Module):
    """Adds a number to each place: the gradient of what it adds is that of what comes out."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(ROWS * WIDTH))

    def forward(self, x):
        return x + self.shift.view(ROWS, WIDTH)


class Token(nn.Module):
    """Puts a row in front: its gradient is a part of that of what comes out."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x):
        return torch.cat([self.token, x[1:]])


LINEAR = npp.Block([lambda: nn.Linear(WIDTH, WIDTH)] * 2, alike=True)
ADDED = npp.Block([Shift, Token, Shift], alike=True)


def space(*blocks):
    return npp.Space("apart", [
        npp.Shared("stem", lambda: nn.Linear(16, WIDTH), rule=npp.Lag(2)),
        *blocks * 4,
        npp.Shared("head", lambda: nn.Linear(WIDTH, 10)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    "execution",
    [
        {"order": "paper"},
        {"order": "critical-path", "recompute": True},
        {"order": "latest-start", "data_path": "zmq"},
        {"memory_budget": "1.5x"},
    ],
)
@pytest.mark.parametrize(
    ("options", "recipe"),
    [({}, {"clip_layer_norm": 0.01}), ({"momentum": 0.9, "nesterov": True}, {})],
)
def test_bits_of_the_plain_loop(tmp_path, execution, options, recipe):
    check(
        tmp_path, space(LINEAR, ADDED), spaces.vectors, LOSS, stages=(1, 2, 3), steps=24,
        options=options, recipe=recipe, execution=execution,
    )  # fmt: skip


def test_gradients_of_two_layers_share_nothing(tmp_path, monkeypatch):
    """Torch lets them, with nothing between: there the loop gives each layer its own."""
    usual = PlainLoop.write

    def write(self, step, used):
        for module in used.values():
            stepped = [p for p in module.parameters() if p.grad is not None]
            for p, gradient in zip(stepped, deepcopy([p.grad for p in stepped]), strict=True):
                p.grad = gradient
        usual(self, step, used)

    monkeypatch.setattr(PlainLoop, "write", write)
    check(
        tmp_path, space(LINEAR, ADDED, ADDED), spaces.vectors, LOSS, stages=(1, 2, 4), steps=24,
        recipe={"clip_layer_norm": 0.01},
    )  # fmt: skip
