"""Each layer of many settings computes what a plain one with the first rows and columns does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe import elastic

SETTINGS = {"w": 8, "v": 12, "k": 3, "h": 2}
LAYERS = [
    (elastic.Linear(16, 20, inputs="w", outputs="v"), (5, 8), (5, 12), nn.Linear),
    (elastic.Linear(8, 20, bias=False, outputs="v"), (5, 8), (5, 12), nn.Linear),
    (elastic.Embedding(9, 20, outputs="v"), None, (4, 12), nn.Embedding),
    (elastic.Conv2d(16, 20, 5, 2, inputs="w", outputs="v", kernel="k"), (2, 8, 6, 6), (2, 12, 3, 3),
     nn.Conv2d),
    (elastic.DepthwiseConv2d(16, 7, inputs="w", kernel="k"), (2, 8, 6, 6), (2, 8, 6, 6), nn.Conv2d),
    (elastic.BatchNorm2d(16, inputs="w"), (2, 8, 3, 3), (2, 8, 3, 3), nn.BatchNorm2d),
    (elastic.BatchNorm1d(16, momentum=None, inputs="w"), (6, 8), (6, 8), nn.BatchNorm1d),
    (elastic.LayerNorm(16, inputs="w"), (3, 8), (3, 8), nn.LayerNorm),
    (elastic.Attention(16, 4, 3, inputs="w", heads="h", causal=True), (2, 5, 8), (2, 5, 8), None),
    (elastic.Residual(elastic.LayerNorm(16, inputs="w"), nn.ReLU()), (3, 8), (3, 8), None),
    (elastic.Sequential(elastic.Linear(16, 20, inputs="w", outputs="v"), nn.Tanh()), (3, 8),
     (3, 12), nn.Sequential),
    (elastic.Depth(elastic.Linear(16, 16, inputs="w", outputs="w"), 1, "h"), (3, 8), (3, 8),
     nn.Linear),
    (elastic.Depth(elastic.Linear(16, 16), 2, "h"), (3, 8), (3, 8), nn.Identity),
]  # fmt: skip


def given(shape):
    if shape is None:
        return torch.tensor([0, 3, 8, 3])
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("layer", "shape", "expected", "kind"), LAYERS)
@pytest.mark.parametrize("trains", [True, False])
def test_a_cut_computes_the_same_bits(layer, shape, expected, kind, trains):
    own = {name: value for name, value in SETTINGS.items() if name in layer.takes}
    cut, x = layer.train(trains).cut(**own).train(trains), given(shape)
    assert kind is None or type(cut) is kind
    with torch.no_grad():
        one, other = layer(x, **own), cut(x)
    assert one.shape == expected and torch.equal(one, other)
    for name, buffer in cut.named_buffers():
        left = layer.get_buffer(name)
        assert torch.equal(left[:8] if left.dim() else left, buffer), "the same statistics are left"


@pytest.mark.parametrize(("layer", "shape"), [each[:2] for each in LAYERS[:-1]])
def test_gradients_are_dense_and_zero_outside_of_the_slice(layer, shape):
    own = {name: value for name, value in SETTINGS.items() if name in layer.takes}
    layer(given(shape), **own).pow(2).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.shape == parameter.shape
        part = layer.cut(**own).get_parameter(name.removeprefix("module.")).numel()
        assert int((parameter.grad != 0).sum()) <= part < parameter.numel() or layer.takes == ()
    layer.zero_grad(set_to_none=True)


def test_a_smaller_kernel_is_the_middle_of_a_larger():
    layer = elastic.Conv2d(1, 1, 5, kernel="k")
    assert torch.equal(layer.cut(k=3).weight, layer.weight[:, :, 1:4, 1:4])
    assert torch.equal(layer.cut(k=1).weight, layer.weight[:, :, 2:3, 2:3])
    assert torch.equal(layer.cut(k=5).weight, layer.weight)


def test_a_layer_begins_as_torchs_own():
    torch.manual_seed(3)
    one = elastic.Linear(6, 7, outputs="width")
    torch.manual_seed(3)
    assert torch.equal(one.weight, nn.Linear(6, 7).weight)
