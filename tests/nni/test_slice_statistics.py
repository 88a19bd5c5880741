"""share="slice" with batch norms: a search judges by statistics that are the subnet's own."""

from __future__ import annotations

import nni
import pytest
import torch
from nni.nas.nn.pytorch import (
    ModelSpace,
    MutableBatchNorm2d,
    MutableConv2d,
    MutableLinear,
    ParametrizedModule,
)
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import VerificationError
from naspipe.evaluation import evaluation
from naspipe.evaluation.proxies import Naswot
from naspipe.machine.determinism import layer_seed, seed_draws


class Wide(ModelSpace):
    def __init__(self):
        super().__init__()
        width = nni.choice("width", [4, 8])
        self.conv, self.norm = MutableConv2d(1, width, 3), MutableBatchNorm2d(width)
        self.head = MutableLinear(width, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Normed(ParametrizedModule):
    def __init__(self, on):
        super().__init__()
        self.on, self.norm = on, nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(x) if self.on else x


class Switch(ModelSpace):
    def __init__(self):
        super().__init__()
        self.conv, self.normed = nn.Conv2d(1, 4, 3), Normed(nni.choice("norm", [True, False]))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.normed(self.conv(x))).mean((2, 3)))


def images(seed, number):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    x = 2 + 3 * torch.randn(16, 1, 6, 6, generator=generator)
    return {"input": x, "target": (x.mean((1, 2, 3)) > 2).long()}


def held_out(seed, number):
    return images(seed + 9, number)


def by_hand(net):
    """The loss of NNI's own model, with statistics of four batches alike."""
    norms = [each for each in net.modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for number in range(4):
            net(images(1, number)["input"])
        net.eval()
        batches = [held_out(1, number) for number in range(2)]
        return (
            sum(functional.cross_entropy(net(b["input"]), b["target"]).item() for b in batches) / 2
        )


@pytest.mark.parametrize("kind", [Wide, Switch])
def test_scores_are_those_of_a_calibration_by_hand(tmp_path, kind):
    space, loss = npp.from_nni(kind(), share="slice"), nn.CrossEntropyLoss()
    run = npp.train(space, images, loss, seed=1, steps=12, lr=0.05, run_dir=tmp_path / "run")
    found = npp.search_subnets(
        run, images, loss, held_out=held_out, strategy="all", budget=2, calibrate=4, validate=2
    )
    for candidate in found.ranked():
        bare = npp.to_nni(run, candidate.choices, data=images, calibrate=0)
        assert candidate.scores.loss == pytest.approx(by_hand(bare), abs=1e-6)


@pytest.mark.parametrize("kind", [Wide, Switch])
def test_naswot_takes_the_statistics_of_the_batch(kind):
    space = npp.from_nni(kind(), share="slice")
    batch = images(1, 0)
    for choices in ([0], [1]):
        options = space.chain(choices)
        modules = []
        for position, (block, option) in enumerate(zip(space.blocks, options, strict=True)):
            seed_draws(layer_seed(1, position, block.candidate(option)))
            modules.append(block.cut_of(block.candidates[block.candidate(option)](), option))
        plain = Naswot(npp.chain(modules), 1, 1, batch)
        assert Naswot(space, 1, 1, batch)(choices) == plain([0] * len(modules))


@pytest.mark.parametrize("is_faulty", [False, True])
def test_a_search_verifies_its_scores(tmp_path, monkeypatch, is_faulty):
    space, loss = npp.from_nni(Wide(), share="slice"), nn.CrossEntropyLoss()
    run = npp.train(space, images, loss, steps=30, seed=1, run_dir=tmp_path / "run", progress=False)

    def search():
        return npp.search_subnets(
            run, images, loss, held_out=held_out, strategy="all", budget=2, validate=2,
            verify="auto", progress=False,
        )  # fmt: skip

    if is_faulty:
        monkeypatch.setattr(evaluation, "find_norms", lambda *_: [])
        with pytest.raises(VerificationError, match=r"the score is that of the run's own$"):
            search()
    else:
        assert search().manifest["verified"]["scores"] >= 1
