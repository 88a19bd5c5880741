"""A layer that gives other bits for the same inputs, weights and draws is refused."""

from __future__ import annotations

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from tests.equivalence import spaces
from tests.frontend.given.convolutions import STEM, head
from tests.frontend.given.test_space_check import checked, refused

ALL = {"calls": 0}


class Layer(nn.Module):
    """Whose forward is a function of the module and its input."""

    calls = 0

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.kept, self.mean, self.past = None, torch.zeros(()), []
        self.cycle = itertools.cycle([1.0, 1.0, 1.0, 2.0])
        self.torch = torch.Generator().manual_seed(0)
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.compute(self, x)


def counts(self, x):
    self.calls += 1
    return x * self.calls


def counts_in_its_class(self, x):
    Layer.calls += 1
    return x * Layer.calls


def counts_in_a_global(self, x):
    ALL["calls"] += 1
    return x * ALL["calls"]


def averages(self, x):
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
    return x - self.mean


def remembers(self, x):
    self.past.append(x.detach())
    return x + sum(self.past)


def goes_round(self, x):
    return x * next(self.cycle)


def draws(name):
    def compute(self, x):
        if name == "torch":
            return x + torch.rand(x.shape, generator=self.torch)
        return x * getattr(self, name).random()

    compute.__name__ = f"draws from its own {name}"
    return compute


def draws_once(self, x):
    if self.kept is None:
        self.kept = torch.rand(x.shape[1:])
    return x * self.kept


def centres_as_the_first(self, x):
    if self.kept is None:
        self.kept = x.detach().mean()
    return x - self.kept


def changes_gradients(self, x):
    y = x * 1
    y.register_hook(lambda gradient: gradient * next(self.cycle))
    return y


def images(seed, number):
    draw = torch.Generator().manual_seed(number)
    return {"input": torch.rand(9, 3, 8, 8, generator=draw), "target": torch.arange(9)}


SILENT = [
    counts, counts_in_its_class, counts_in_a_global, averages, remembers, goes_round,
    draws("torch"), draws("numpy"), draws("python"), draws_once, centres_as_the_first,
    changes_gradients,
]  # fmt: skip


@pytest.mark.parametrize("compute", SILENT, ids=lambda compute: compute.__name__)
def test_one_that_remembers_more_than_a_run_keeps(compute):
    said = refused(STEM, npp.Block([nn.Identity, partial(Layer, compute)]), head(), batches=images)
    assert said.startswith(
        "layer 0.1 (Layer): expected the same outputs and gradients for the same inputs, weights "
        "and draws, found others "
    )
    assert "register_buffer what a forward changes" in said


def test_what_has_changed_is_named():
    assert "again (its attribute calls has changed);" in refused(
        STEM, npp.Block([partial(Layer, counts)]), head()
    )


def test_a_hook_that_remembers():
    def hooked():
        module, cycle = nn.Conv2d(8, 8, 1), itertools.cycle([1.0, 2.0])
        module.register_forward_hook(lambda _, given, output: output * next(cycle))
        return module

    said = refused(STEM, npp.Block([hooked]), head())
    assert said.startswith("layer 0.0 (Conv2d): expected the same outputs")


def test_a_factory_that_draws_by_itself():
    draw = torch.Generator().manual_seed(0)

    def drawn():
        module = Layer(lambda self, x: x)
        module.weight = nn.Parameter(torch.rand(3, generator=draw))
        return module

    said = refused(STEM, npp.Block([drawn]), head())
    assert said.startswith("layer 0.0 (Layer): expected its factory to make the same weights")


def keeps_in_a_buffer(self, x):
    self.count += 1
    return x * self.count


def makes_a_buffer(self, x):
    if "places" not in self._buffers:
        self.register_buffer("places", torch.rand(x.shape[1:]))
    return x + self.places


def keeps_what_shapes_say(self, x):
    if self.kept is None:
        self.kept = torch.arange(float(x.shape[-1]))
    return x + self.kept


def draws_from_the_global_ones(self, x):
    return functional.dropout(x) * torch.rand(()) * float(np.random.rand()) * random.random()


@pytest.mark.parametrize(
    "compute",
    [keeps_in_a_buffer, makes_a_buffer, keeps_what_shapes_say, draws_from_the_global_ones],
)
def test_one_that_keeps_what_a_run_keeps(compute):
    checked(STEM, npp.Block([partial(Layer, compute)]), head(), batches=images)


def test_norms_of_torch_are_let_be():
    norms = [
        lambda: nn.Sequential(Layer(lambda self, x: x), nn.BatchNorm2d(8)),
        lambda: nn.utils.spectral_norm(nn.Conv2d(8, 8, 1)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1)),
    ]
    checked(STEM, npp.Block(norms), head(), batches=images)


def test_layers_that_take_whole_batches_only():
    def whole(compute):
        return lambda self, x: compute(self, x.reshape(9, *x.shape[1:]))

    taken = [partial(Layer, whole(each)) for each in (keeps_in_a_buffer, counts)]
    said = refused(STEM, npp.Block(taken), head(), batches=images)
    assert said.startswith("layer 0.1 (Layer): expected the same outputs")


def test_nothing_of_it_stays_here(tmp_path):
    """What is tried before a run is tried in other processes: the one pass is all that counts."""
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


def test_a_run_is_refused_before_anything_is_written(tmp_path):
    blocks = [*spaces.mixed(blocks=1).blocks, npp.Shared("last", partial(Layer, counts))]
    with pytest.raises(npp.ConfigError, match=r"^layer last \(Layer\): expected the same outputs"):
        npp.train(
            npp.Space("s", blocks), spaces.vectors, nn.CrossEntropyLoss(), steps=1,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
