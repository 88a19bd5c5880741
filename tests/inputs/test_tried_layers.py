"""Layers and losses are called before a run, which refuses what they remember."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces
from tests.inputs.convolutions import STEM, head
from tests.inputs.test_space_check import checked, refused

ALL = {"calls": 0}


class Layer(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.compute(self, x)


def counts(self, x):
    ALL["calls"] += 1
    return x * ALL["calls"]


def counts_in_a_buffer(self, x):
    self.count += 1
    return functional.dropout(x) * self.count


def images(seed, number):
    draw = torch.Generator().manual_seed(number)
    return {"input": torch.rand(9, 3, 8, 8, generator=draw), "target": torch.arange(9)}


def test_a_layer_that_counts_elsewhere():
    said = refused(STEM, npp.Block([nn.Identity, partial(Layer, counts)]), head(), batches=images)
    assert said.startswith(
        "layer 0.1 (Layer): expected the same output for the same inputs, weights and "
    )
    assert "so use register_buffer for what a call changes" in said
    assert ALL == {"calls": 0}, "it was called in a process of its own"


def test_a_layer_that_keeps_what_a_run_keeps():
    checked(STEM, npp.Block([partial(Layer, counts_in_a_buffer)]), head(), batches=images)


def test_layers_that_take_whole_batches_only():
    def whole(compute):
        return lambda self, x: compute(self, x.reshape(9, *x.shape[1:]))

    taken = [partial(Layer, whole(each)) for each in (counts_in_a_buffer, counts)]
    said = refused(STEM, npp.Block(taken), head(), batches=images)
    assert said.startswith("layer 0.1 (Layer): expected the same output")


def test_a_loss_that_counts():
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


def test_a_buffer_of_a_loss_is_named():
    said = refused(STEM, npp.Block([nn.Identity]), head(), loss=Centred())
    assert "found it to change its buffer centre" in said


def test_a_run_is_refused_before_anything_is_written(tmp_path):
    blocks = [*spaces.mixed(blocks=1).blocks, npp.Shared("last", partial(Layer, counts))]
    with pytest.raises(ConfigError, match=r"^layer last \(Layer\): expected the same output"):
        npp.train(
            npp.Space("s", blocks), spaces.vectors, nn.CrossEntropyLoss(), steps=1,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_nothing_of_it_stays_here(tmp_path):
    seen = {"layer": 0, "loss": 0}

    def sees(self, x):
        seen["layer"] += 1
        return x

    def loss(output, target):
        seen["loss"] += 1
        return functional.cross_entropy(output, target)

    blocks = [*spaces.mixed(blocks=1).blocks, npp.Shared("last", partial(Layer, sees))]
    npp.train(npp.Space("s", blocks), spaces.vectors, loss, steps=1, run_dir=tmp_path / "run")
    assert seen == {"layer": 1, "loss": 1}


class Counts(nn.Module):
    """Counts in an attribute, where each layer has its own."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_layer_that_counts_in_an_attribute():
    said = refused(STEM, npp.Block([nn.Identity, Counts]), head(), batches=images)
    assert said.startswith("layer 0.1 (Counts): expected the same output for the same inputs")
