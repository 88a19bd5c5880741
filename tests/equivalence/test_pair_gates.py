"""Architecture rounds with two sampled paths: the bits of a plain loop."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.mixed import MixedEdge, PairEdge
from naspipe.mixed import architecture as alphas
from tests.equivalence.harness import assert_same_bits, plain_torch
from tests.equivalence.plain_pairs import PlainPairs
from tests.equivalence.test_mixed_edges import (
    LR,
    MOMENTUM,
    SEED,
    STEPS,
    distill,
    layers,
    plain_blocks,
    rounds,
)
from tests.faults.helpers import Calm, Ends, interrupt
from tests.thinned import long


def check(found, **how):
    for run, loop in zip(found.blocks, plain_blocks(block=PlainPairs, **how), strict=True):
        assert_same_bits(run, loop)


@pytest.mark.parametrize(
    ("stages", "execution"),
    [long(1, {}), (2, {"recompute": True}), (3, {"checkpoint_every": 3})],
)
@pytest.mark.parametrize("with_costs", [False, True])
def test_bits_of_the_plain_loop(tmp_path, stages, execution, with_costs):
    found = distill(
        tmp_path / "run", stages, execution=execution, with_costs=with_costs, gates="pair"
    )
    check(found, with_costs=with_costs)
    learned = [run.layer(0, 0).alpha.detach() for run in found.blocks]
    assert all(float(alpha.abs().max()) > 0.005 for alpha in learned)


def test_it_is_interrupted_and_goes_on_on_other_stages(tmp_path):
    data = Ends(rounds(), 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        distill(tmp_path / "run", 2, data=data, steps=80, execution={"window": 3}, gates="pair")
    found = distill(tmp_path / "run", 3, data=Calm(rounds()), steps=80, resume=True, gates="pair")
    check(found, steps=80)


def test_an_ordinary_run_has_them_too(tmp_path):
    """A whole network, whose layers move between two stages and host memory."""
    chain = [*layers()[0], [lambda: nn.Linear(24, 10)]]
    run = npp.train(
        npp.mixed.student("labelled", chain, gates="pair"), rounds(), nn.CrossEntropyLoss(),
        steps=STEPS, seed=SEED, lr=LR, optimizer_options={**MOMENTUM, "alpha_lr": 0.1}, stages=2,
        run_dir=tmp_path / "run", execution={"memory_budget": "1x"},
    )  # fmt: skip
    loop = PlainPairs(chain, SEED, lambda y: LR, {"lr": LR, **MOMENTUM})
    with plain_torch():
        for y in range(STEPS):
            batch = rounds()(SEED, y)

            def learn(output, target=batch["target"]):
                return functional.cross_entropy(output, target)

            loop.step(y, bool(batch["round"]), batch["input"], learn)
    assert_same_bits(run, loop)


@pytest.mark.parametrize(
    "mutant",
    [
        (PairEdge, "_learned", MixedEdge._learned),
        (alphas._OfAlphas, "step", alphas.torch.optim.Adam.step),
    ],
    ids=["all candidates run", "alphas are not put back"],
)
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, mutant):
    monkeypatch.setattr(*mutant)
    found = distill(tmp_path / "run", 1, steps=12, gates="pair")
    with pytest.raises(AssertionError):
        check(found, steps=12)


def test_other_gates_are_one_line():
    with pytest.raises(npp.ConfigError, match=r"gates full or pair, found 'both'"):
        npp.mixed.student("s", [[lambda: nn.Linear(2, 2)]], gates="both")
