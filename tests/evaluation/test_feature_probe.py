"""Features are judged by their neighbours, or by a linear map that is fitted to some of them."""

from __future__ import annotations

import pytest
import torch

from naspipe.evaluation.evaluation import RIDGE, pooled, probe_sums


def batches(spread, count=12, classes=3, size=10, seed=1):
    """Points around one corner for each class; the corners are far apart if spread is small."""
    draws = torch.Generator().manual_seed(seed)
    targets = [torch.randint(classes, (size,), generator=draws) for _ in range(count)]
    corners = torch.eye(classes)
    outputs = [
        (corners[target] + spread * torch.randn(size, classes, generator=draws),)
        for target in targets
    ]
    return outputs, targets


@pytest.mark.parametrize("kind", ["knn", "ridge"])
def test_what_is_apart_is_told_apart(kind):
    *_, count, right, of_five = probe_sums(kind, *batches(0.05), bank=8).tolist()
    assert (count, right, of_five) == (40.0, 40.0, 40.0)
    row = probe_sums(kind, *batches(5.0), bank=8).tolist()
    assert row[3] < 25 and row[0] == row[1] - row[3]


def test_the_linear_map_is_the_least_squares_one():
    outputs, targets = batches(0.7)
    x = torch.cat([output[0] for output in outputs]).double()
    y = torch.nn.functional.one_hot(torch.cat(targets)).double()
    known, asked = x[:80], x[80:]
    mean, spread = known.mean(0), known.std(0)
    a = (known - mean) / spread
    lifted = torch.cat([a, (RIDGE * (a.T @ a).diagonal().mean()).sqrt() * torch.eye(3)])
    wanted = torch.cat([y[:80] - y[:80].mean(0), torch.zeros(3, 3)])
    weights = torch.linalg.lstsq(lifted, wanted).solution
    guess = ((asked - mean) / spread @ weights + y[:80].mean(0)).argmax(1)
    right = float((guess == torch.cat(targets)[80:]).sum())
    assert probe_sums("ridge", outputs, targets, bank=8)[3] == right


def test_pixels_and_tokens_are_averaged():
    assert torch.equal(pooled(torch.arange(8.0).view(1, 2, 2, 2)), torch.tensor([[1.5, 5.5]]))
    assert torch.equal(pooled(torch.arange(6.0).view(1, 3, 2)), torch.tensor([[2.0, 3.0]]))
    assert pooled(torch.ones(4, 3)).shape == (4, 3)
