"""What losses, metrics and batches are told before the start, or in the first step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.checks.loss import check_loss
from naspipe.config.errors import BlockInputEditedError, ConfigError
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload, field_of
from naspipe.worker.blocks.objectives import Metrics
from tests.equivalence import spaces

CROSS_ENTROPY = nn.CrossEntropyLoss()


def workload(loss=CROSS_ENTROPY, **metrics):
    space = npp.Space("mine", [npp.Shared("head", lambda: nn.Linear(16, 10))])
    defined = Workload.of(space, spaces.vectors, loss, recipe=Recipe(), steps=2)
    return replace(defined, metrics=metrics)


def refused(*given, **metrics):
    with pytest.raises(ConfigError) as caught:
        check_loss(workload(*given, **metrics))
    return str(caught.value)


def nothing(output, target):
    """Returns nothing."""


def of_output(output, target):
    output.data.mul_(0)
    return 1.0


def of_target(output, target):
    target.zero_()
    return CROSS_ENTROPY(output, target)


def test_a_metric_that_returns_nothing():
    said = "metric mine: expected one number for a batch, found None; return a number, or a tensor"
    assert refused(mine=nothing) == f"{said} of one element"


@pytest.mark.parametrize(
    ("loss", "metrics", "what"),
    [
        (CROSS_ENTROPY, {"mine": of_output}, "metric mine"),
        (CROSS_ENTROPY, {"mine": of_target}, "metric mine"),
        (of_target, {}, "loss of_target"),
    ],
)
def test_work_in_place_is_found_by_shapes(loss, metrics, what):
    assert refused(loss, **metrics) == (
        f"{what}: expected to leave its output and fields of the batch as they are, found it to "
        f"change one in place; use the out-of-place operation (x = x * 2 for x *= 2)"
    )


def test_a_loss_has_its_output_for_itself():
    check_loss(workload(lambda output, target: CROSS_ENTROPY(output.mul_(2), target)))


def test_what_needs_values_is_found_in_the_first_step():
    def doubles(output, target):
        return float(output.sum()) + float(output.mul_(2).sum())

    check_loss(workload(mine=doubles))
    with pytest.raises(BlockInputEditedError, match=r"^metric mine changes its input in place"):
        Metrics({"mine": doubles}, 1)((torch.ones(2, 3),), (torch.ones(2),))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.ones(3), "a NumPy array; return torch.from_numpy(target)"),
        ([1, 2], "list; return torch.tensor(target)"),
        (3.0, "float; return torch.tensor(target)"),
    ],
)
def test_a_field_that_is_no_tensor(value, found):
    with pytest.raises(ConfigError) as caught:
        field_of({"input": torch.ones(3), "target": value}, "target", 0)
    assert str(caught.value) == f"batch 0: expected a tensor called 'target', found {found}"
    with pytest.raises(ConfigError, match=r"expected a tensor called 'mask', found input$"):
        field_of({"input": value}, "mask", 0)
    named = r"called 'input', found image; name it so, as in a collate_fn .* \{'input': ...\}$"
    with pytest.raises(ConfigError, match=named):
        field_of({"image": value}, "input", 0)
