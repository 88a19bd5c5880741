"""A loss that gives another number for the same outputs and batch is refused before the start."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.data.keyed.global_draws import kept_draws
from tests.frontend.given.convolutions import head
from tests.frontend.given.test_repeated_layers import STEM, images
from tests.frontend.given.test_space_check import checked, refused


class Remembers:
    """A loss that keeps a mean, a list, a generator, an iterator or its first batch."""

    def __init__(self, how):
        self.how, self.mean, self.past, self.first = how, 0.0, [], None
        self.draw, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.cycle = itertools.cycle([1.0, 1.0, 1.0, 2.0])

    def __call__(self, output, target):
        found = functional.cross_entropy(output, target)
        if self.how == "mean":
            self.mean = 0.9 * self.mean + 0.1 * found.detach()
            return found - self.mean
        if self.how == "list":
            self.past.append(float(found))
            return found * len(self.past)
        if self.how == "torch":
            return found * torch.rand((), generator=self.draw)
        if self.how == "numpy":
            return found * self.numpy.random()
        if self.how == "iterator":
            return found * next(self.cycle)
        if self.first is None:
            self.first = output.detach().mean(0)
        return found + (output - self.first).square().mean()


HOW = ["mean", "list", "torch", "numpy", "iterator", "first"]


@pytest.mark.parametrize("how", HOW)
def test_one_that_remembers(how):
    said = refused(STEM, npp.Block([nn.Identity]), head(), loss=Remembers(how), batches=images)
    assert said.startswith(
        "loss Remembers: expected the same number for the same outputs and batch, as no checkpoint "
        "keeps what a loss does, found another "
    )


def test_a_closure_that_counts():
    calls = itertools.count(1)

    def warmed(output, target):
        return functional.cross_entropy(output, target) * next(calls)

    assert "warmed: expected the same number" in refused(STEM, head(), loss=warmed)
    assert next(calls) == 1


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(10))

    def forward(self, output, target):
        self.centre.mul_(0.9).add_(output.detach().mean(0))
        return functional.cross_entropy(output - self.centre, target)


def test_a_buffer_is_named():
    said = refused(STEM, npp.Block([nn.Identity]), head(), loss=Centred())
    assert "found it to change its buffer centre" in said


def test_one_that_draws_by_the_key():
    def noisy(output, target):
        output = functional.dropout(output) * float(np.random.rand()) * random.random()
        return functional.cross_entropy(output, target)

    with kept_draws():
        checked(STEM, npp.Block([nn.Identity]), head(), loss=noisy, batches=images)


def test_one_that_logs():
    seen = []

    def logs(output, target):
        seen.append(len(output))
        return functional.cross_entropy(output, target)

    checked(STEM, npp.Block([nn.Identity]), head(), loss=logs, batches=images)
    assert seen == []
