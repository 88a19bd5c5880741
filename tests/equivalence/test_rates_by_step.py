"""Rates by step: the bits of a plain loop with torch's schedulers, or a function of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.recipe import in_cycle
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.faults.helpers import Calm, Ends, fail

LOSS = nn.CrossEntropyLoss()
STEPS = 14


def train(path, data=spaces.vectors, stages=2, **more):
    return npp.train(
        spaces.mixed(), data, LOSS, steps=STEPS, seed=1, run_dir=path, stages=stages, **more
    )


def restarts():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    follows = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        follows.step()
    return rates


def triangle(step):
    return 0.1 * (1 - abs(step % 6 - 3) / 3)


FORMS = {
    "restarts": (
        {"lr": 0.1, "recipe": {"schedule": "cosine", "restart_steps": 3, "restart_factor": 2}},
        lambda step: restarts()[step],
    ),
    "function": ({"lr": triangle}, triangle),
    "table": ({"lr": {0: 0.1, 5: 0.07, 9: 0.003}},
              lambda step: 0.1 if step < 5 else 0.07 if step < 9 else 0.003),
    "in the recipe": ({"recipe": {"lr": triangle, "clip_layer_norm": 0.0}}, triangle),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_bits_of_rates(tmp_path, form):
    given, plain = FORMS[form]
    for stages in (1, 2):
        run = train(tmp_path / f"run-{stages}", stages=stages, **given)
        oracle = plain_loop(run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=plain)
        assert_same_bits(run, oracle)


def other(step):
    return 0.1


@pytest.mark.parametrize("form", ["restarts", "function"])
def test_rates_go_on_behind_a_checkpoint(tmp_path, form):
    given, plain = FORMS[form]
    path, how = tmp_path / "run", {"execution": {"checkpoint_every": 3, "window": 3}}
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, Ends(spaces.vectors, 9, fail, tmp_path / "marker"), **given, **how)
    with pytest.raises(npp.ConfigError, match="is another run: its recipe"):
        train(path, Calm(spaces.vectors), lr=other, resume=True, **how)
    run = train(path, Calm(spaces.vectors), 1, resume=True, **given, **how)
    assert run.manifest["life"]["first"][0] > 0
    oracle = plain_loop(run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=plain)
    assert_same_bits(run, oracle)


def test_a_broken_rule_is_seen(tmp_path, monkeypatch):
    """A cycle that is one step too long."""
    monkeypatch.setattr(
        "naspipe.config.recipe.in_cycle", lambda at, first, growth: in_cycle(at, first + 1, growth)
    )
    given, plain = FORMS["restarts"]
    run = train(tmp_path / "run", stages=1, **given)
    oracle = plain_loop(run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=plain)
    with pytest.raises(AssertionError):
        assert_same_bits(run, oracle)


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (lambda step: 1 / step, r"lr: expected a function .* found ZeroDivisionError.*\.py:\d+\)"),
        (lambda: 1.0, "lr: expected a function from a step to its rate, found TypeError"),
        (lambda step: -1.0, "lr: expected a rate of 0 or more for step 0"),
        ({1: 0.1}, "expected rising steps from 0"),
        ("fast", "lr: expected a number, found 'fast'"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, lr, message):
    with pytest.raises(npp.ConfigError, match=message) as caught:
        train(tmp_path / "run", lr=lr)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
