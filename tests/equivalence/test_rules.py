"""Layers that are read late, with what makes up for it: the bits of the plain loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.rules import Every, Lag, OwnStep, parse_rule
from naspipe.worker.layers import own_steps, stored_layer
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop
from tests.faults.helpers import interrupt_and_resume
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-3}
RULES = (
    "lag(3,momentum=0.5,lr=0.25)", "lag(0..4,over=12)", "every(3)", "every(4,momentum=0.0,lr=2.0)",
    "lag(3,predict)", "lag(2,momentum=0.3,predict)", "lag(0..3,over=9,predict)",
)  # fmt: skip
"""Two of each kind. Each test of the ordinary run has some of them, and each is in some test."""


def some(*numbers):
    """All rules; those of other numbers only with --all."""
    return [text if number in numbers else long(text) for number, text in enumerate(RULES)]


def space_of(text, end=None):
    return spaces.mixed(parse_rule(text), end or npp.Exact())


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("text", RULES)
def test_on_any_number_of_stages(tmp_path, text, stages):
    optimizer = ("SGD", "Adam")[(RULES.index(text) + stages) % 2]
    check(
        tmp_path, space_of(text), spaces.vectors, LOSS, stages=(stages,), steps=18,
        options=MOMENTUM if optimizer == "SGD" else {"betas": (0.8, 0.99)}, lr=0.01,
        optimizer=optimizer, sampler="spaced:3",
    )  # fmt: skip


@pytest.mark.parametrize("text", some(1, 2, 6))
def test_with_a_budget_and_recompute(tmp_path, text):
    """The layer lags at both ends, and what is kept of it goes through host memory."""
    check(
        tmp_path, space_of(text, parse_rule(text)), spaces.vectors, nn.CrossEntropyLoss(),
        stages=(2,), steps=20, optimizer="Adam", lr=0.01,
        execution={"recompute": True, "memory_budget": "0.001x"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "passes", "execution"),
    [
        ("lag(3,predict)", "accumulate:3", {}), ("every(3)", "accumulate:2", {}),
        ("lag(0..3,over=6)", "subnets:2", {}), ("lag(0..3,over=6,predict)", "accumulate:2", {}),
        ("lag(2,predict)", "accumulate:4", {"groups": 2}),
        ("lag(0..3,over=6,predict)", "accumulate:4", {"groups": 2}),
        long("lag(0..1,over=5,predict)", "subnets:3", {"groups": 3}),
        long("every(3,lr=2.0)", "accumulate:4", {"groups": 2}),
        long("lag(3,momentum=0.0)", "accumulate:4", {"groups": 2}),
    ],
)  # fmt: skip
def test_steps_of_several_passes(tmp_path, text, passes, execution):
    """K and M count steps, whoever computes their passes."""
    number = int(passes.partition(":")[2])
    check(
        tmp_path, space_of(text), spaces.vectors, LOSS, stages=(2,),
        steps=10 * number, optimizer="Adam", lr=0.01, recipe={"passes": passes},
        execution=execution,
    )  # fmt: skip


@pytest.mark.parametrize("text", some(4, 5)[1:])
def test_through_a_resume(tmp_path, text):
    """It ends within what is gathered, and within K's growth; other stages go on."""
    kw = {"space": space_of(text, parse_rule(text)), "optimizer": "Adam", "lr": 0.01}
    then = {"stages": 3, "execution": {"memory_budget": "0.001x"}}
    run = interrupt_and_resume(tmp_path, spaces.vectors, {"stages": 2}, then, **kw)
    how = {"seed": 1, "optimizer": "Adam", "lr": 0.01}
    assert_same_bits(run, plain_loop(kw["space"], spaces.vectors, LOSS, run, **how))


@pytest.mark.parametrize("recipe", [{"nonfinite": "skip"}, {"ema": 0.9}, {"clip_layer_norm": 0.1}])
@pytest.mark.parametrize("text", ["every(3)", "lag(2,predict)"])
def test_beside_what_else_a_step_does(tmp_path, text, recipe):
    data = spaces.vectors if "nonfinite" not in recipe else now_and_then_infinite
    check(
        tmp_path, space_of(text), data, LOSS, stages=(2,), steps=20, optimizer="Adam", lr=0.01,
        recipe=recipe,
    )  # fmt: skip


def now_and_then_infinite(seed, step):
    batch = spaces.vectors(seed, step)
    return {**batch, "input": batch["input"] * (math.inf if step in (4, 5, 11) else 1.0)}


def newer(rule, step, read=Lag.last_read):
    return min(read(rule, step) + 1, step - 1)


def grows_late(rule, step):
    return step - 1 - rule.subnets * max(0, step - 1) // (rule.over or 1)


def a_boundary_on(rule, step, read=Every.last_read):
    return read(rule, step) + rule.steps


def at_the_first(own, step):
    return step % own.every == 0


def as_far_at_once(own, step):
    return own.predicts


def a_step_short(parameter, optimizer, own):
    return own_steps.ahead(parameter, optimizer, replace(own, predicts=own.predicts - 1))


@pytest.mark.parametrize(
    ("text", "where", "name", "wrong"),
    [
        ("lag(3)", Lag, "last_read", newer), ("lag(0..4,over=12)", Lag, "last_read", grows_late),
        ("every(3)", Every, "last_read", a_boundary_on),
        ("every(3)", OwnStep, "applies", at_the_first),
        ("lag(3,predict)", stored_layer, "ahead", a_step_short),
        ("lag(0..3,over=9,predict)", OwnStep, "predicts_of", as_far_at_once),
    ],
)  # fmt: skip
def test_a_wrong_step_is_seen(tmp_path, monkeypatch, text, where, name, wrong):
    """Off by one in K, in its growth, at the boundary, in what is foreseen."""
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError, match="first loss that differs"):
        check(
            tmp_path, space_of(text), spaces.vectors, LOSS, stages=(2,), steps=16, options=MOMENTUM
        )


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_nothing_is_foreseen_where_nobody_knows_how_far(tmp_path, policy):
    """On one stage, where the next subnet begins behind the last WRITE."""
    losses = [
        npp.train(
            space_of(text), spaces.vectors, LOSS, steps=9, seed=3, policy=policy, bulk=1,
            optimizer_options=MOMENTUM, execution={"window": 1}, run_dir=tmp_path / text,
        ).losses
        for text in ("lag(3)", "lag(3,predict)")
    ]  # fmt: skip
    assert losses[0] == losses[1]


@pytest.mark.parametrize("missing", own_steps.READ_STATES)
def test_a_copy_without_what_its_readers_predict_from_is_seen(tmp_path, monkeypatch, missing):
    """The readers of another group then see the layer elsewhere than those of its own group."""
    sent = tuple(each for each in own_steps.READ_STATES if each != missing)
    monkeypatch.setattr(stored_layer, "READ_STATES", sent)
    with pytest.raises(AssertionError, match="first loss that differs"):
        check(
            tmp_path, space_of("lag(0..3,over=6,predict)"), spaces.vectors, LOSS, stages=(1,),
            steps=8, options=MOMENTUM, recipe={"passes": "accumulate:2"}, execution={"groups": 2},
        )  # fmt: skip


def test_what_a_rule_cannot_have(tmp_path):
    how = {"steps": 3, "run_dir": tmp_path / "run"}
    with pytest.raises(
        npp.ConfigError, match=r"momentum=0.5: expected an optimizer with an option"
    ):
        space = space_of("lag(3,momentum=0.5)")
        npp.train(space, spaces.vectors, LOSS, optimizer="Adagrad", **how)
    with pytest.raises(npp.ConfigError, match="a choice block: expected the rule exact"):
        npp.Block([nn.Identity], rule=Every(2))
    assert not how["run_dir"].exists()
