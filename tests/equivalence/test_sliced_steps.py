"""A step on the slices that were used: the bits of a loop that puts the rest back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.rules import parse_rule
from naspipe.worker.layers import own_steps
from tests.equivalence import elastic_spaces as elastic
from tests.equivalence.harness import check, restless
from tests.equivalence.test_elastic_layers import ADAMW, LEAST, LOSS, SGD
from tests.faults import helpers


def sliced(space):
    blocks = [replace(b, step="slice") if isinstance(b, npp.Elastic) else b for b in space.blocks]
    return npp.Space(space.name, blocks, space.decisions)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(
    ("make", "data", "loss", "optimizer"),
    [
        (elastic.linears, elastic.vectors, LOSS, SGD), (elastic.images, elastic.maps, LOSS, ADAMW),
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), SGD),
    ],
)  # fmt: skip
def test_bits_of_the_plain_loop(tmp_path, make, data, loss, optimizer, stages):
    check(tmp_path, sliced(make()), data, loss, stages=(stages,), steps=12, **optimizer)


@pytest.mark.parametrize(
    ("rule", "recipe", "execution"),
    [
        ("exact", {"passes": "subnets:4"}, {"groups": 2}),
        ("exact", {"passes": "sandwich:2", "ema": 0.9}, {"recompute": True, **LEAST}),
        ("lag(2,predict)", {"ema": 0.9, "clip_layer_norm": 0.1}, {}),
    ],
)
def test_with_what_else_a_step_does(tmp_path, monkeypatch, rule, recipe, execution):
    if rule == "exact":  # others stay where they are
        restless(monkeypatch)
    space = sliced(elastic.linears(parse_rule(rule)))
    how = {"stages": (2,), "steps": 8, "recipe": recipe, "execution": execution}
    check(tmp_path, space, elastic.vectors, LOSS, **how, **ADAMW)


def test_a_run_and_its_resume(tmp_path):
    """It goes on elsewhere; stepped as a whole it would be another run."""
    kw = {"space": sliced(elastic.linears()), "options": {"momentum": 0.9}}
    first, then = {"stages": 2}, {"stages": 3, "execution": LEAST}
    found = helpers.interrupt_and_resume(tmp_path, elastic.vectors, first, then, **kw)
    whole = helpers.train(tmp_path / "whole", helpers.Calm(elastic.vectors), **kw)
    helpers.assert_identical(whole, found)
    kw["space"] = elastic.linears()
    with pytest.raises(npp.ConfigError, match="stepped by the slice, found stem"):
        helpers.train(tmp_path / "ended", helpers.Calm(elastic.vectors), resume=True, **kw)


def test_it_matters(tmp_path, monkeypatch):
    """Without what puts the rest back, momentum and decay move it."""
    space = sliced(elastic.linears())
    monkeypatch.setattr(own_steps, "_alike", lambda optimizer, parameter: [])
    with pytest.raises(AssertionError, match=r"tensors differ|first loss"):
        check(tmp_path, space, elastic.vectors, LOSS, stages=(1,), steps=6, **SGD)


def wrong_cut(module, *, width):
    """Takes one row too few."""
    found = nn.Linear(module.in_features, width - 1)
    found.weight.data.copy_(module.weight[: width - 1])
    found.bias.data.copy_(module.bias[: width - 1])
    return found


def mixed_cut(module, *, width):
    found = nn.Linear(module.in_features, width)
    found.weight.data.copy_(module.weight[:width] * 2)
    return found


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (wrong_cut, "only where its cut takes entries, found others; mend cut"),
        (mixed_cut, "to take entries of parameters as they are"),
    ],
)
def test_a_cut_that_is_not_what_is_computed(tmp_path, cut, said):
    width = {"width": [4, 8]}
    space = npp.Space("wrong", [
        npp.Elastic("fc", lambda: npp.elastic.Linear(12, 8, outputs="width"), width, cut=cut,
                    step="slice"),
        npp.Elastic("head", lambda: npp.elastic.Linear(8, 3, inputs="width"), width),
    ])  # fmt: skip
    with pytest.raises(npp.NaspipeError, match=said):
        npp.train(space, elastic.vectors, LOSS, steps=3, run_dir=tmp_path / "r", progress=False)


def test_what_it_goes_with(tmp_path):
    width = {"width": [4, 8]}
    with pytest.raises(npp.ConfigError, match="step to be one of whole, slice, found 'part'"):
        npp.Elastic("fc", nn.Identity, width, step="part")
    with pytest.raises(npp.ConfigError, match=r"exact or lag\(K\) with step=.slice., found every"):
        npp.Elastic("fc", nn.Identity, width, rule="every(2)", step="slice")
    how = {"steps": 3, "optimizer": "Rprop", "run_dir": tmp_path / "r", "progress": False}
    with pytest.raises(npp.ConfigError, match="each entry has to be stepped alone, found Rprop"):
        npp.train(sliced(elastic.linears()), elastic.vectors, LOSS, **how)
