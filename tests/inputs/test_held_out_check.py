"""Held-out batches that do not fit are refused before the start; others need not be alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api.train import workload
from naspipe.api.validation_plan import plan_validation
from naspipe.checks import space as held_out_check
from naspipe.checks.space import check_held_out
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from tests.inputs.convolutions import BATCH, STEM, conv, data, head


def checked(*blocks, device="cpu", **fields):
    space = npp.Space("mine", [STEM, npp.Block([conv(8, 8), lambda: nn.BatchNorm2d(8)]), *blocks])

    def held_out(seed, number):
        return {**BATCH, **fields}

    loss = nn.CrossEntropyLoss()
    defined = workload(space, data, loss, steps=4, held_out=held_out)
    check_held_out(plan_validation(defined, Execution(validate_every=2)), device)


def refused(*blocks, **fields):
    with pytest.raises(ConfigError) as caught:
        checked(*blocks, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"input": torch.ones(4, 3, 8, 8).double()},
            "held-out data: layer stem (Conv2d): expected to take the batch's input, [4, 3, 8, 8] "
            "float64 (as of NumPy; .float() makes float32), found RuntimeError: Input type",
        ),
        (
            {"input": torch.ones(4, 1, 8, 8)},
            "held-out data: layer stem (Conv2d): expected to take the batch's input, [4, 1, 8, 8], "
            "found RuntimeError: Given groups=1",
        ),
        (
            {"target": torch.ones(4)},
            "held-out data: the loss (CrossEntropyLoss): expected to take what layer head "
            "(Sequential) returns, [4, 10], found RuntimeError: expected target dtype",
        ),
    ],
)
def test_what_does_not_fit(fields, said):
    assert refused(head(), **fields).startswith(said)


@pytest.mark.parametrize("size", [(1, 3, 8, 8), (4, 3, 12, 12), (1, 3, 9, 4)])
def test_what_fits_need_not_be_alike(size):
    """One item has no statistics of its own: layers are in evaluation mode, as where they judge."""
    checked(head(), input=torch.ones(size), target=torch.zeros(size[0]).long())


def test_what_is_alike_is_not_followed(monkeypatch):
    monkeypatch.setattr(held_out_check, "looked", lambda *_: pytest.fail("followed"))
    checked(head(), input=torch.ones(2, 3, 8, 8), target=torch.zeros(2).long())
    check_held_out(None, "cpu")
