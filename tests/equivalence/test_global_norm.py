"""Clipping by the norm of a whole step: every WRITE waits for it, and the bits are the loop's."""

from __future__ import annotations

import struct

import pytest
from torch import nn

import naspipe as npp
from naspipe.engine.gates import StepGate
from naspipe.worker.blocks.updates import NormExchange, clip_factor
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail
from tests.mutants import turns_red

LOSS = nn.CrossEntropyLoss()
CLIP = {"clip_global_norm": 0.5}
MOMENTUM = {"momentum": 0.9}
NANS = ("fff8000000000000", "7ff8000000000000")
"""The bits of a negative and of a positive NaN."""


@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        ((1, 4), {}),
        ((2,), {"recompute": True, "memory_budget": "1.5x"}),
        ((3,), {"transport": "tcp", "port": 31260, "order": "critical-path"}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, monkeypatch, stages, execution):
    restless(monkeypatch)
    runs = check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=stages, steps=12, lr=0.05,
        options=MOMENTUM, recipe={**CLIP, "ema": 0.9}, execution=execution,
    )  # fmt: skip
    unclipped = plain_loop(
        runs[0].space, spaces.vectors, LOSS, runs[0], seed=1, optimizer="SGD", lr=0.05,
        options=MOMENTUM, ema=0.9,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        assert_same_bits(runs[0], unclipped)


def test_it_goes_on_behind_a_checkpoint(tmp_path):
    def train(data, stages, **kw):
        return npp.train(
            spaces.mixed(), data, LOSS, steps=12, seed=1, lr=0.05, stages=stages, recipe=CLIP,
            run_dir=tmp_path / "run", execution={"checkpoint_every": 3, "window": 3}, **kw,
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError, match="injected"):
        train(Ends(spaces.vectors, 9, fail, tmp_path / "marker"), 2)
    run = train(Calm(spaces.vectors), 3, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, **CLIP
    )
    assert_same_bits(run, oracle)


def forgetful(exchange, stream, gradients):
    """Norms of all layers but one."""
    found = whole(exchange, stream, gradients)
    return dict(list(found.items())[1:])


whole = NormExchange.contribution


def ungated(gate, progress, num_sums):
    """Released before the norms are known."""
    admit(gate, progress, num_sums)
    progress.holds = 0


admit = StepGate.admit


@pytest.mark.parametrize(
    ("owner", "name", "broken", "reason"),
    [
        (NormExchange, "contribution", forgetful, "first loss that differs"),
        (StepGate, "admit", ungated, "before the norms of its step"),
    ],
)
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, owner, name, broken, reason):
    monkeypatch.setattr(owner, name, broken)
    with turns_red(reason):
        check(
            tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(2,), steps=8, lr=0.05,
            recipe=CLIP,
        )  # fmt: skip


def test_baselines_have_no_steps(tmp_path):
    with pytest.raises(npp.ConfigError, match="policy bsp: expected csp or sequential"):
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=4, policy="bsp", recipe=CLIP,
            run_dir=tmp_path / "run",
        )  # fmt: skip


def test_the_sign_of_a_nan_does_not_depend_on_the_interpreter():
    """CPython specialises a line of arithmetic after a few executions, and may swap operands."""
    negative, positive = (struct.unpack(">d", bytes.fromhex(each))[0] for each in NANS)
    for norms in ([negative, positive], [positive, negative], [1.0, negative], [negative]):
        factors = {struct.pack(">d", clip_factor(norms, 0.5)).hex() for _ in range(200)}
        assert factors == {NANS[1]}, f"norms {norms}: the factors have the bits {factors}"
