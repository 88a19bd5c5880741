"""Factories that take what is there already: what a run would write there is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.checks.sketched import SketchedLayers
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces

OUTSIDE = torch.randn(16, 16)
ARRAY = np.ones((16, 16), dtype=np.float32)


def by_data(weight=OUTSIDE):
    layer = nn.Linear(16, 16)
    layer.weight.data = weight
    return layer


def by_parameter():
    layer = nn.Linear(16, 16)
    layer.weight = nn.Parameter(OUTSIDE)
    return layer


def as_a_table():
    layer = nn.Linear(16, 16)
    layer.register_buffer("table", OUTSIDE[None])
    return layer


@functools.cache
def cached(_=None):
    return nn.Linear(16, 16)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (by_data, "memory"),
        (by_parameter, "memory"),
        (lambda: by_data(torch.from_numpy(ARRAY)), "memory"),
        (lambda: nn.Embedding.from_pretrained(OUTSIDE, freeze=False), "memory"),
        (lambda: nn.Embedding.from_pretrained(OUTSIDE), ""),
        (cached, "module"),
        (lambda: cached(3), "module"),
        (lambda: by_data(OUTSIDE.clone()), ""),
        (as_a_table, ""),
        (lambda: nn.Linear(16, 16), ""),
        (nn.Identity, ""),
        (lambda: 1 / 0, ""),
    ],
)
def test_what_a_factory_does_not_make_anew(make, what):
    space = npp.Space("mine", [npp.Block([make])])
    assert SketchedLayers(space).handed_out(0, 0) == what


def trained(tmp_path, *candidates):
    head = npp.Shared("head", lambda: nn.Linear(16, 10))
    space = npp.Space("mine", [npp.Block([nn.Identity, *candidates]), head])
    with pytest.raises(ConfigError) as caught:
        npp.train(space, spaces.vectors, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    return str(caught.value)


@pytest.mark.parametrize("make", [by_data, by_parameter])
def test_one_tensor_of_several_layers(tmp_path, make):
    said = trained(tmp_path, lambda: make(), lambda: make())
    assert said.startswith("layers 0.1 and 0.2 share one parameter: tied layers are not supported")
    assert "let each factory make its own, of a tensor from outside a copy, w.clone()" in said


def test_one_tensor_of_one_layer(tmp_path):
    assert trained(tmp_path, by_parameter) == (
        "layer 0.1 (Linear): expected its factory to make a new module each time, found one that "
        "takes a parameter from outside, which a run would train on from where the last one left "
        "it; take a copy, as in w.clone(), or begin with weights by init_from="
    )


def test_a_cached_factory(tmp_path):
    assert trained(tmp_path, cached) == (
        "layer 0.1 (Linear): expected its factory to make a new module each time, found one that "
        "hands out what was made before, as under functools.cache, which a run would train on from "
        "where the last one left it; make it inside, as in lambda: nn.Linear(4, 4), or begin with "
        "weights by init_from="
    )
