"""The plain networks are those of the papers, and train like spaces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import search_spaces
from naspipe.checks.sketched import sketch
from search_spaces.networks.mobile.shapes import shapes
from tests.equivalence.harness import check

IMAGENET = {"channels": 3, "height": 224, "width": 224, "classes": 1000}
FASHION = {"channels": 1, "height": 28, "width": 28, "classes": 10}
SMALL = {"channels": 1, "height": 8, "width": 8, "classes": 10}
BERT = {"vocabulary": 30_522, "padding": 1}
"""The published vocabulary."""

OF_IMAGES = [name for name in search_spaces.networks() if "bert" not in name]

OUT = {"byol": 16, "moco-v3": 16}
"""Of networks that classify nothing."""


@pytest.mark.parametrize(
    ("name", "blocks", "parameters"),
    [
        ("vgg16", 16, 138_357_544),
        ("vgg19", 19, 143_667_240),
        ("resnet50", 18, 25_557_032),
        ("resnet101", 35, 44_549_160),
        ("resnet152", 52, 60_192_808),
        ("mobilenet-v2", 20, 3_504_872),
        ("mobilenet-v3", 14, 2_542_856),
    ],
)
def test_their_sizes_are_those_that_were_published(name, blocks, parameters):
    """As torchvision lists them for ImageNet."""
    space = search_spaces.build(name, "paper", IMAGENET)
    modules = [sketch(space, block, 0) for block in range(len(space))]
    assert len(space) == blocks
    assert sum(p.numel() for module in modules for p in module.parameters()) == parameters


def test_bert_has_its_published_size_but_for_what_the_specification_names():
    """BertForMaskedLM of transformers has 109,514,298: segments, and a decoder that is tied."""
    space = search_spaces.build("bert-base", "paper", BERT)
    modules = [sketch(space, block, 0) for block in range(len(space))]
    assert len(space) == 14
    found = sum(p.numel() for module in modules for p in module.parameters())
    assert found == 109_514_298 - 2 * 768 + 768 * 30_522


def test_mobilenet_has_the_maps_of_the_paper():
    """Its output sizes on ImageNet, and on images too small to be halved as often."""
    for side, maps in ((224, (56, 28, 14, 14, 7, 7)), (28, (28, 14, 7, 7, 7, 7))):
        found, size = shapes("paper", {**IMAGENET, "height": side, "width": side}), side
        size //= found.stem_stride
        sizes = [size := size // stage.stride for stage in found.stages]
        assert tuple(sizes) == maps


@pytest.mark.parametrize("name", OF_IMAGES)
def test_tiny_ones_take_small_images(name):
    for info in (FASHION, SMALL):
        space = search_spaces.build(name, "tiny", info)
        images = torch.randn(2, info["channels"], info["height"], info["width"])
        for block in space.blocks:
            images = block.candidates[0]().eval()(images)
        assert images.shape == (2, OUT.get(name, 10))


def test_most_parameters_of_a_tiny_vgg_are_in_its_linear_layers():
    space = search_spaces.build("vgg16", "tiny", FASHION)
    counts = [sum(p.numel() for p in block.candidates[0]().parameters()) for block in space.blocks]
    assert 0.84 < sum(counts[-3:]) / sum(counts) < 0.91


def test_a_tiny_bert_sees_no_padding():
    """More padding behind a sentence changes none of its scores."""
    torch.manual_seed(1)
    space = search_spaces.build("bert-base", "tiny", {"vocabulary": 50, "padding": 1})
    modules = [block.candidates[0]().eval() for block in space.blocks]
    words = torch.randint(4, 50, (2, 7))
    scores = []
    for padding in (0, 5):
        passed = (torch.nn.functional.pad(words, (0, padding), value=1),)
        for module in modules:
            out = module(*passed)
            passed = out if isinstance(out, tuple) else (out,)
        scores.append(passed[0][:, :7])
    assert scores[0].shape == (2, 7, 50)
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


def batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, 1, 8, 8, generator=draw),
        "target": torch.randint(0, 10, (4,), generator=draw),
    }


@pytest.mark.parametrize("name", [pytest.param("vgg16", marks=pytest.mark.long), "resnet50"])
def test_bits_of_the_plain_loop(tmp_path, name):
    space = search_spaces.build(name, "tiny", SMALL)
    for groups, stages in ((1, (2,)), (2, (1, 2))):
        check(
            tmp_path, space, batches, nn.CrossEntropyLoss(), stages=stages, steps=3, lr=0.01,
            options={"momentum": 0.9}, recipe={"passes": "accumulate:4"},
            execution={"groups": groups},
        )  # fmt: skip
