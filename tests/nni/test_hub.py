"""Spaces of NNI's hub: the same forward bit for bit, and training through naspipe."""

from __future__ import annotations

import pytest
import torch

import naspipe
from naspipe.config.blocks import Block
from tests.nni.chain import fixed_model, forward, layers, samples
from tests.nni.plain import set_architecture
from tests.nni.spaces import batches, make
from tests.oracle import bits

SHAPES = {"proxyless": (21, 7), "shufflenet": (20, 4), "nasbench201": (36, 5)}
"""Choice blocks, and the most candidates of one."""


@pytest.fixture(scope="module")
def made():
    """Each model space and what it becomes, made once."""
    spaces = {}

    def get(name):
        if name not in spaces:
            model_space = make(name)
            spaces[name] = model_space, naspipe.from_nni(model_space)
        return spaces[name]

    return get


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("training", [False, True])
def test_a_chain_is_nnis_own_forward(made, name, training):
    model_space, space = made(name)
    counts = space.candidate_counts
    assert (len(counts), max(counts)) == SHAPES[name]
    model_space.train(training)
    before = {key: bits(tensor) for key, tensor in model_space.state_dict().items()}
    x = batches(0, 0)["input"]
    for sample in samples(space, 3):
        modules = [module.train(training) for module in layers(space, sample)]
        torch.manual_seed(5)
        found = forward(modules, x)
        set_architecture(model_space, sample)
        torch.manual_seed(5)
        assert bits(found) == bits(model_space(x))
        if training:
            continue  # NNI's own modules have new statistics now
        for module in modules:
            for key, tensor in module.state_dict().items():
                assert bits(tensor) == before[key]


@pytest.mark.parametrize("name", ["autoformer", "darts", "nds"])
def test_a_chain_is_nnis_fixed_model(made, name):
    """Where sizes or inputs are choices, NNI runs an architecture as a model of its own."""
    model_space, space = made(name)
    x = batches(0, 0)["input"]
    for sample in samples(space, 3):
        modules = [module.eval() for module in layers(space, sample)]
        model = fixed_model(model_space, sample, modules).eval()
        assert bits(forward(modules, x)) == bits(model(x))


@pytest.mark.parametrize("name", [*SHAPES, "autoformer", "darts"])
def test_samples_and_choices_translate_both_ways(made, name):
    _, space = made(name)
    for sample in samples(space, 5):
        choices = space.decisions.choices_of(sample)
        space.chain(choices)
        assert space.decisions.choices_of(space.decisions.sample_of(choices)) == choices


def test_cells_that_share_labels_are_one_decision(made):
    _, space = made("nasbench201")
    assert space.decisions.counts == (5,) * 6
    blocks = [block for block in space.blocks if isinstance(block, Block)]
    choices = space.decisions.choices([0, 1, 2, 3, 4, 0])
    assert len(blocks) == 36 and len({choices[at : at + 6] for at in range(0, 36, 6)}) == 1
    with pytest.raises(naspipe.ConfigError, match="share a label"):
        space.decisions.sample_of((1, *(0,) * 35))
