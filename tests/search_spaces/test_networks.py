"""The plain networks are those of the papers, and train like spaces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import search_spaces
from naspipe.runtime.measuring.layer_sizes import sketch
from tests.equivalence.harness import check

IMAGENET = {"channels": 3, "height": 224, "width": 224, "classes": 1000}
FASHION = {"channels": 1, "height": 28, "width": 28, "classes": 10}
SMALL = {"channels": 1, "height": 8, "width": 8, "classes": 10}


@pytest.mark.parametrize(
    ("name", "blocks", "parameters"),
    [
        ("vgg16", 16, 138_357_544),
        ("vgg19", 19, 143_667_240),
        ("resnet50", 18, 25_557_032),
        ("resnet101", 35, 44_549_160),
        ("resnet152", 52, 60_192_808),
    ],
)
def test_their_sizes_are_those_that_were_published(name, blocks, parameters):
    """As torchvision lists them for ImageNet."""
    space = search_spaces.build(name, "paper", IMAGENET)
    modules = [sketch(space, block, 0) for block in range(len(space))]
    assert len(space) == blocks
    assert sum(p.numel() for module in modules for p in module.parameters()) == parameters


@pytest.mark.parametrize("name", search_spaces.networks())
def test_tiny_ones_take_small_images(name):
    for info in (FASHION, SMALL):
        space = search_spaces.build(name, "tiny", info)
        images = torch.randn(2, info["channels"], info["height"], info["width"])
        for block in space.blocks:
            images = block.candidates[0]().eval()(images)
        assert images.shape == (2, 10)


def test_most_parameters_of_a_tiny_vgg_are_in_its_linear_layers():
    space = search_spaces.build("vgg16", "tiny", FASHION)
    counts = [sum(p.numel() for p in block.candidates[0]().parameters()) for block in space.blocks]
    assert 0.84 < sum(counts[-3:]) / sum(counts) < 0.91


def batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, 1, 8, 8, generator=draw),
        "target": torch.randint(0, 10, (4,), generator=draw),
    }


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_bits_of_the_plain_loop(tmp_path, name):
    space = search_spaces.build(name, "tiny", SMALL)
    for groups, stages in ((1, (2,)), (2, (1, 2))):
        check(
            tmp_path, space, batches, nn.CrossEntropyLoss(), stages=stages, steps=3, lr=0.01,
            options={"momentum": 0.9}, recipe={"passes": "accumulate:4"},
            execution={"groups": groups},
        )  # fmt: skip
