"""Layers whose forward changes their own parameters: the bits of a plain loop, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.config.rules import parse_rule
from tests.equivalence.harness import check

LOSS = nn.CrossEntropyLoss()


class ForcedNorm(nn.Module):
    """Brings the rows of its weight back to unit length in each training forward."""

    def __init__(self, through_data=False):
        super().__init__()
        self.weight, self.through_data = nn.Parameter(torch.randn(16, 16)), through_data

    def forward(self, x):
        if self.training:
            weight = self.weight.data if self.through_data else self.weight
            with torch.no_grad():
                weight.copy_(weight / (weight.norm(dim=1, keepdim=True) + 1e-4))
        return torch.tanh(functional.linear(x, self.weight))


class ActNorm(nn.Module):
    """Takes its first scale from the first batch."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("is_begun", torch.tensor(False))

    def forward(self, x):
        if not self.is_begun:
            self.scale.data.copy_(1 / (x.detach().std(0) + 1e-3))
            self.is_begun.fill_(True)
        return x * self.scale


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def words(seed, number):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    x = torch.randint(0, 40, (8, 6), generator=generator)
    return {"input": x, "target": x.sum(1) % 4}


class Bag(nn.Module):
    """Torch's own part, inside of a module."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 16, max_norm=0.5)

    def forward(self, x):
        return self.bag(x)


def plain_stem():
    return nn.Sequential(nn.Embedding(40, 16), Mean())


def embedding():
    return nn.Sequential(nn.Embedding(40, 16, max_norm=1.0), Mean())


KINDS = {
    "max_norm": (embedding, lambda: nn.Linear(16, 16), "0.weight"),
    "bag": (Bag, lambda: nn.Linear(16, 16), "bag.weight"),
    "forced": (plain_stem, ForcedNorm, "weight"),
    "data": (plain_stem, lambda: ForcedNorm(through_data=True), "weight"),
    "actnorm": (plain_stem, ActNorm, "scale"),
}


def space_of(kind, rule="exact"):
    stem, middle, _ = KINDS[kind]
    return npp.Space(
        f"edits-{kind}",
        [
            npp.Shared("stem", stem, rule=parse_rule(rule)),
            npp.Shared("middle", middle, rule=parse_rule(rule)),
            npp.Block([lambda: nn.Linear(16, 16), nn.Tanh]),
            npp.Shared("head", lambda: nn.Linear(16, 4)),
        ],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_the_plain_loop(tmp_path, kind):
    check(tmp_path, space_of(kind), words, LOSS, stages=(1, 2), steps=12, lr=0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "how", "found"),
    [
        ("exact", {"recipe": {"passes": "accumulate:2"}}, "2 passes per step"),
        ("exact", {"execution": {"recompute": True}}, "recompute"),
        ("exact", {"execution": {"memory_budget": "2x"}}, "memory_budget"),
        ("lag(2)", {}, r"rule lag\(2\)"),
    ],
)
def test_refused_before_anything_is_written(tmp_path, kind, rule, how, found):
    where = "stem" if KINDS[kind][1]().__class__ is nn.Linear else "middle"
    said = rf"^layer {where} \(\w+\): its forward changes its own parameter {KINDS[kind][2]}, .*"
    with pytest.raises(ConfigError, match=f"{said}found {found}; [^\n]*$"):
        npp.train(
            space_of(kind, rule), words, LOSS, steps=4, run_dir=tmp_path / "run", stages=2, **how
        )
    assert not (tmp_path / "run").exists()


class Late(nn.Module):
    """What no check sees before the run: only some batches change the parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        if self.calls > 6:
            with torch.no_grad():
                self.weight.mul_(0.5)
        return x * self.weight


def test_refused_when_it_happens(tmp_path):
    space = npp.chain([plain_stem(), Late(), nn.Linear(16, 4)])
    with pytest.raises(npp.NaspipeError, match=r"layer 1.0 .*its own parameter weight"):
        npp.train(
            space, words, LOSS, steps=12, run_dir=tmp_path / "run", execution={"recompute": True}
        )


def test_no_subnet_of_a_search_leaves_anything_in_the_weights(tmp_path):
    """Torch brings rows of an embedding to their norm in evaluation mode, too."""
    run = npp.train(
        space_of("max_norm"), words, LOSS, steps=6, seed=1, lr=2.0, run_dir=tmp_path / "run"
    )
    scores = [
        npp.search_subnets(
            run, words, LOSS, held_out=lambda seed, number: words(seed + 7, number),
            strategy="all", budget=2, validate=2, stages=stages, name=str(stages),
        ).ranked()
        for stages in (1, 2)
    ]  # fmt: skip
    ours = [{r.choices: r.scores.loss for r in each} for each in scores]
    assert ours[0] == ours[1]
    for choices, loss in ours[0].items():
        modules = [
            run.shared("stem"),
            run.shared("middle"),
            run.layer(0, *choices),
            run.shared("head"),
        ]
        net = nn.Sequential(*modules).eval()
        with torch.no_grad():
            batches = [words(1 + 7, number) for number in range(2)]
            expected = sum(LOSS(net(each["input"]), each["target"]).item() for each in batches) / 2
        assert loss == pytest.approx(expected, abs=1e-6)
