"""What a definition says of a loss: what makes other bits makes another text."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from naspipe.config.errors import ConfigError
from naspipe.jobs.losses import described, smoothed

PLAIN = "torch.nn.modules.loss.CrossEntropyLoss"


class Scaled(nn.Module):
    def __init__(self, scale, inner=None):
        super().__init__()
        self.scale, self.inner, self.calls = scale, inner, 0


def test_what_is_usual_is_not_said():
    assert described(nn.CrossEntropyLoss()) == PLAIN
    assert described(functional.cross_entropy) == "torch.nn.functional.cross_entropy"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), f"{PLAIN}(label_smoothing=0.1)"),
        (Scaled(2.0), f"{__name__}.Scaled(scale=2.0)"),
        (
            Scaled(2.0, nn.CrossEntropyLoss(ignore_index=3)),
            f"{__name__}.Scaled(inner={PLAIN}(ignore_index=3), scale=2.0)",
        ),
        (
            functools.partial(functional.cross_entropy, label_smoothing=0.2),
            "torch.nn.functional.cross_entropy(label_smoothing=0.2)",
        ),
    ],
)
def test_what_it_was_made_with_is_said(loss, said):
    assert described(loss) == said


def test_weights_are_told_apart_by_their_bits():
    one, other = (nn.CrossEntropyLoss(torch.tensor([1.0, last])) for last in (2.0, 2.0000002))
    assert "weight=[2]:" in described(one) and described(one) != described(other)
    again = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]))
    assert described(one) == described(again)


def test_what_it_counts_is_not_what_it_is():
    loss = Scaled(1.0)
    before = described(loss)
    loss.calls = 7
    assert described(loss) == before


def test_two_amounts_of_smoothing_are_one_too_many():
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    with pytest.raises(ConfigError, match=r"given once, found 0\.1 in Cross.*; leave one of them"):
        smoothed(smooth, 0.2)
    assert smoothed(smooth, 0.0) is smooth and smoothed(smooth, 0.1).label_smoothing == 0.1


class Scales:
    """A plain callable that keeps what it was made with."""

    def __init__(self, table):
        self.table = table

    def __call__(self, x):
        return x * self.table


class HoldsItself:
    def __init__(self, inner=None):
        self.inner = inner or self

    def __call__(self, x):
        return x


@pytest.mark.parametrize("wrap", [Scales, lambda table: functools.partial(torch.mul, table)])
@pytest.mark.parametrize(
    "table",
    [
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        torch.ones(()),
        torch.ones(3, dtype=torch.bool),
    ],
    ids=["meta", "sparse", "nested", "scalar", "bool"],
)
def test_a_callable_that_holds_any_kind_of_tensor_is_described(wrap, table):
    said = described(wrap(table))
    assert said == described(wrap(table)) and "\n" not in said


def test_a_callable_that_holds_itself_is_described():
    assert described(HoldsItself()).startswith(f"{__name__}.HoldsItself(")
