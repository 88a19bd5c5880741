"""Cells that return the nodes which no other node reads: chains are NNI's own models."""

from __future__ import annotations

import nni.nas.nn.pytorch as nas
import pytest
import torch
from nni.nas.hub.pytorch.nasnet import NDS
from torch import nn

import naspipe
from naspipe.nni.proof import NniProof
from naspipe.nni.trace import open_ends, variants
from tests.nni import spaces
from tests.nni.chain import differing, samples
from tests.nni.compare import stages_agree
from tests.nni.spaces import batches


class Loose(nas.ModelSpace):
    """Two cells of one label; the second and the head are made for what the first leaves open."""

    def __init__(self, heeds=True):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=4)
        self.first = self.make_cell()
        open_nodes = len(self.first.output_node_indices) if heeds else 3
        self.between = nn.Sequential(nn.ReLU(), nn.Conv2d(4 * open_nodes, 4, 1))
        self.second = self.make_cell()
        self.head = nn.Linear(4 * open_nodes, 10)

    def make_cell(self):
        ops = [nn.Conv2d(4, 4, 1), nn.Tanh()]
        return nas.Cell(ops, 3, 2, 1, merge_op="loose_end", label="cell")

    def forward(self, x):
        x = self.between(self.first([self.stem(x)]))
        return self.head(self.second([x]).mean((2, 3)))


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(7)
    model_space = Loose()
    return model_space, naspipe.from_nni(model_space, example=batches(0, 0)["input"])


def test_every_set_of_open_ends_can_be_had(made):
    cell = made[0].first
    found = [open_ends(cell, each) for each in variants(cell, by_number=False)]
    assert sorted(found) == [(1, 2, 3), (1, 3), (2, 3), (3,)]
    numbers = [len(open_ends(cell, each)) for each in variants(cell, by_number=True)]
    assert numbers == [1, 2, 3]
    for each in variants(cell, by_number=False):
        assert all(node < int(label.split("_")[1]) for label, (node,) in each.items())


def test_60_chains_are_nnis_own_models(made):
    model_space, space = made
    assert space.proof.prove({})["layers_compared"] == sum(space.candidate_counts)
    ends = [block for block in space.decisions.blocks if len(block.labels) > 2]
    assert [len(block.samples) for block in ends] == [4, 3, 4, 3], "cell, between, cell, head"
    many = samples(space, 400)
    assert len({open_ends(model_space.first, each) for each in many}) == 4
    rare = [each for each in many if open_ends(model_space.first, each) == (1, 2, 3)]
    drawn = [*many[:57], *rare[:3]]
    assert len(drawn) == 60
    assert differing(model_space, space, drawn, batches(0, 0)["input"]) == []


def test_samples_and_choices_translate_both_ways(made):
    space = made[1]
    for sample in samples(space, 20):
        choices = space.decisions.choices_of(sample)
        assert space.decisions.choices_of(space.decisions.sample_of(choices)) == choices


def test_steps_on_two_stages_are_those_on_one(tmp_path, monkeypatch):
    monkeypatch.setitem(spaces.MADE, "loose", Loose)
    assert stages_agree("loose", tmp_path, steps=4, stages=2) == []


def test_a_space_of_the_hub():
    """Its cells are made by a factory for each input, and reduce in every stage but the first."""
    torch.manual_seed(7)
    model_space = NDS(
        ["skip_connect", "max_pool_3x3"], "loose_end", 2, width=4, num_cells=3, dataset="cifar"
    )
    space = naspipe.from_nni(model_space)
    assert differing(model_space, space, samples(space, 4), batches(0, 0)["input"]) == []


def test_a_head_that_does_not_heed_the_ends_is_refused():
    torch.manual_seed(7)
    with pytest.raises(naspipe.ConfigError, match="can compute, found RuntimeError: Given groups"):
        naspipe.from_nni(Loose(heeds=False), example=batches(0, 0)["input"])


@pytest.mark.parametrize("broken", ["find_sized", "open_ends"])
def test_the_comparison_can_fail(monkeypatch, broken):
    """Layers of one size for all, or all nodes returned, are not NNI's."""
    torch.manual_seed(7)
    if broken == "find_sized":
        monkeypatch.setattr("naspipe.nni.adapter.find_sized", lambda *given: None)
    else:
        returned = lambda cell, sample: tuple(cell.output_node_indices)  # noqa: E731
        monkeypatch.setattr("naspipe.nni.trace.open_ends", returned)
    with pytest.raises(naspipe.ConfigError):
        space = naspipe.from_nni(Loose())
        assert isinstance(space.proof, NniProof)
        space.proof.prove(batches(0, 0))
