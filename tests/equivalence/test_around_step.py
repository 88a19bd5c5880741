"""Clipping and averaging of layers: the plain loop's bits, wherever the layers go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.recipe import Recipe
from naspipe.worker.layers import own_steps as around_step
from naspipe.worker.layers.optimizers import PER_LAYER
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail
from tests.mutants import turns_red
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
BOTH = {"clip_layer_norm": 0.1, "ema": 0.9}


@pytest.mark.parametrize(
    ("optimizer", "options"), [long("SGD", None), ("Adam", None), ("SGD", {"momentum": 0.9})]
)
def test_bits_of_clipping_and_averages(tmp_path, monkeypatch, optimizer, options):
    restless(monkeypatch)
    budget = {"recompute": True, "memory_budget": "1.5x"} if options else {}
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1, 2, 4), steps=12,
        optimizer=optimizer, options=options, lr=0.01, recipe=BOTH, execution=budget,
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", PER_LAYER)
def test_no_optimizer_is_disturbed_by_the_average(optimizer):
    """Its parameters are those without an average, and the average begins as a copy."""
    found = []
    for ema in (0.0, 0.5):
        torch.manual_seed(0)
        module = nn.Linear(4, 3)
        recipe = Recipe(optimizer=optimizer, lr=0.1, ema=ema)
        stepped = around_step_of(recipe, module)
        found.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    for p in module.parameters():
        assert around_step.AVERAGE in stepped.state[p]
        assert not torch.equal(stepped.state[p][around_step.AVERAGE], p)


def around_step_of(recipe, module):
    from naspipe.worker.layers.optimizers import make_optimizer

    optimizer = make_optimizer(recipe, module.parameters())
    for _ in range(3):
        module(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_averages_are_read_from_the_run(tmp_path):
    (run,) = check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1,), steps=8, recipe={"ema": 0.5}
    )
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, ema=0.5
    )
    head = len(run.space) - 1
    for name, p in oracle.layers[head, 0].named_parameters():
        average = dict(run.shared("head", ema=True).named_parameters())[name]
        assert torch.equal(average, oracle.averages[p]) and not torch.equal(average, p)


def test_a_run_without_averages_says_so(tmp_path):
    run = npp.train(spaces.mixed(), spaces.vectors, LOSS, steps=2, run_dir=tmp_path / "run")
    with pytest.raises(npp.ConfigError, match="kept moving averages, found one without"):
        run.shared("head", ema=True)


def test_averages_go_on_behind_a_checkpoint(tmp_path):
    def train(data, stages, **kw):
        return npp.train(
            spaces.mixed(), data, LOSS, steps=12, seed=1, lr=0.05, stages=stages, recipe=BOTH,
            run_dir=tmp_path / "run", execution={"checkpoint_every": 3, "window": 3}, **kw,
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError, match="injected"):
        train(Ends(spaces.vectors, 9, fail, tmp_path / "marker"), 2)
    run = train(Calm(spaces.vectors), 1, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, **BOTH
    )
    assert_same_bits(run, oracle)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [("another norm", "first loss that differs"), ("_average", "one side alone has, .*ema")],
)
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, broken, reason):
    """A run that clips at another norm; averages of parameters that were not stepped."""
    with monkeypatch.context() as patch, turns_red(reason):
        if broken == "_average":
            patch.setattr(around_step, "_with_gradient", list)
        run = npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=6, seed=1, run_dir=tmp_path / "run",
            recipe={**BOTH, "clip_layer_norm": 0.2 if broken == "another norm" else 0.1},
        )  # fmt: skip
        oracle = plain_loop(
            run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, **BOTH
        )
        assert_same_bits(run, oracle)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"clip_layer_norm": -1.0}, "clip_layer_norm: expected a finite norm, or 0 for none"),
        ({"clip_layer_norm": float("nan")}, "clip_layer_norm: expected a finite norm"),
        ({"ema": 1.0}, "ema: expected a decay from 0 to below 1, found 1.0"),
    ],
)
def test_what_cannot_be_used_is_refused(recipe, message):
    with pytest.raises(npp.ConfigError, match=message):
        Recipe(**recipe)
