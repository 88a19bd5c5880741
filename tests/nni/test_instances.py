"""A subnet as NNI's own model: of the user's class, with the bits of the exported one."""

from __future__ import annotations

import nni.nas.nn.pytorch as nas
import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.export.pytorch_form import load_pytorch
from naspipe.nni.adapter import proof_of
from tests.nni.spaces import batches
from tests.oracle import bits

LOSS = nn.CrossEntropyLoss()


def convolution(kernel):
    return nn.Sequential(nn.Conv2d(4, 4, kernel, padding=kernel // 2), nn.BatchNorm2d(4), nn.ReLU())


class Small(nas.ModelSpace):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=4)
        self.blocks = nas.Repeat(
            lambda i: nas.LayerChoice([convolution(1), convolution(3)], label=f"op{i}"),
            (1, 2),
            label="depth",
        )
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("instances") / "run"
    return npp.train(npp.from_nni(Small()), batches, LOSS, steps=4, lr=0.1, run_dir=path)


@torch.no_grad()
def test_of_a_search_it_has_the_bits_of_the_exported_one(run, tmp_path):
    found = npp.search_subnets(
        run, batches, LOSS, held_out=batches, strategy="nni:Random", budget=3, validate=1
    )
    same = {"data": batches, "calibrate": found.calibration}
    for each in found.ranked():
        place = tmp_path / str(each.sequence_id)
        npp.export_subnet(run, each.choices, place, **same)
        x = batches(5, 5)["input"]
        expected = bits(load_pytorch(place)(x))
        model = npp.to_nni(run, each.choices, **same)
        assert type(model) is Small and not any(part.training for part in model.modules())
        assert bits(model(x)) == expected
        sample = run.space.decisions.sample_of(each.choices)
        assert bits(npp.to_nni(run, sample, **same)(x)) == expected
        assert bits(npp.to_nni(run, sample, calibrate=0)(x)) != expected
        frozen = Small().freeze(sample).eval()
        assert bits(frozen(x)) != expected
        frozen.load_state_dict(model.state_dict())
        assert bits(frozen(x)) == expected


def test_layers_that_were_never_trained_are_named(tmp_path, capfd):
    torch.manual_seed(7)
    short = npp.train(
        npp.from_nni(Small()), batches, LOSS, steps=1, lr=0.1, run_dir=tmp_path / "run"
    )
    choices = tuple(1 - choice for choice in short.stream[0])
    capfd.readouterr()
    npp.to_nni(short, {"op0": choices[0], "op1": 0, "depth": 1}, calibrate=0)
    said = capfd.readouterr().err
    assert f"never trained by {short.path}" in said and f"0.{choices[0]}" in said


def test_what_is_no_subnet_of_nnis_is_said_in_a_line(run):
    with pytest.raises(ConfigError, match=r"label op1: expected one of .*, found nothing"):
        npp.to_nni(run, {"op0": 0, "depth": 1})
    with pytest.raises(ConfigError, match=r"expected 2 choices, .*found 1"):
        npp.to_nni(run, [0])
    parts = npp.from_nni(Small()).cut([1])
    plain = npp.Space("plain", [npp.Shared("one", lambda: nn.Linear(4, 3))])
    for space in (plain, *parts):
        with pytest.raises(ConfigError, match=r"expected a whole space of naspipe\.from_nni"):
            proof_of(space)
