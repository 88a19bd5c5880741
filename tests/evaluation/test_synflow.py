"""Synflow against its formula: products of absolute weights in numpy, and exact differences."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe
from naspipe.config.errors import ConfigError
from naspipe.evaluation.proxies import Synflow

IMAGES = {"input": torch.randn(3, 2, 4, 4)}


def score(modules, batch=None, seed=0):
    space = naspipe.chain(modules)
    return Synflow(space, seed, 1, batch or {"input": torch.randn(5, 4)})((0,) * len(modules))


def linears(*sizes, bias=False):
    torch.manual_seed(3)
    return [nn.Linear(*pair, bias=bias) for pair in pairwise(sizes)]


def absolute(tensor):
    return np.abs(tensor.detach().double().numpy())


class Norms(nn.Module):
    """Every norm of torch's, as modules and as functions, with weights that would be seen."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(
            nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True),
            nn.LayerNorm([4, 4]), nn.RMSNorm([4, 4]),
        )  # fmt: skip
        for parameter in self.parameters():
            nn.init.constant_(parameter, 3.0)

    def forward(self, x):
        return functional.layer_norm(input=self.parts(x), normalized_shape=(4, 4))


class Skip(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x if self.inner is None else x + self.inner(x)


def test_of_linear_layers_each_has_the_whole_flow():
    """With R = 1^T |W2| |W1| 1, each layer's sum of |w dR/dw| is R."""
    first, second = linears(4, 6, 3)
    flow = (absolute(second.weight) @ absolute(first.weight) @ np.ones(4)).sum()
    assert score([first, second]) == pytest.approx(math.log(2 * flow), rel=1e-14)
    three = linears(4, 6, 5, 2)
    flow = np.linalg.multi_dot([absolute(each.weight) for each in reversed(three)]).sum()
    assert score([nn.Sequential(*three)]) == pytest.approx(math.log(3 * flow), rel=1e-14)


def test_biases_flow_on_and_are_not_counted():
    first, second = linears(4, 6, 3, bias=True)
    inner = absolute(first.weight) @ np.ones(4)
    through = (absolute(second.weight) @ inner).sum()
    with_bias = (absolute(second.weight) @ (inner + absolute(first.bias))).sum()
    assert score([first, second]) == pytest.approx(math.log(through + with_bias), rel=1e-14)


def test_of_a_network_with_a_convolution_and_a_skip_by_exact_differences():
    """R is a polynomial of degree 1 in each single weight, so that differences are derivatives."""
    torch.manual_seed(5)
    stem, inner = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 1, bias=False)
    head = nn.Linear(12, 2)
    parts = [stem, Skip(nn.Sequential(nn.ReLU(), inner)), nn.Flatten(), head]
    weights = [stem.weight, stem.bias, inner.weight, head.weight, head.bias]
    values = [torch.from_numpy(absolute(each)) for each in weights]

    def flow():
        x = functional.conv2d(torch.ones(1, 2, 4, 4).double(), values[0], values[1])
        x = x + functional.conv2d(x, values[2])
        return float(functional.linear(x.flatten(1), values[3], values[4]).sum())

    total = 0.0
    for place in (0, 2, 3):
        entries = values[place].view(-1)
        for entry in range(len(entries)):
            was, entries[entry] = float(entries[entry]), 0.0
            without = flow()
            entries[entry] = was
            total += abs(flow() - without)
    assert score(parts, IMAGES) == pytest.approx(math.log(total), rel=1e-9)


def test_norms_are_left_out():
    torch.manual_seed(1)
    plain = [nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(32, 3)]
    assert score([plain[0], Norms(), *plain[1:]], IMAGES) == score(plain, IMAGES)
    assert score([plain[0], nn.Softplus(), *plain[1:]], IMAGES) != score(plain, IMAGES)


def test_neither_data_nor_dropout_nor_order_matter():
    layers = [*linears(4, 6), nn.Dropout(0.5), *linears(6, 3)]
    one = score(layers, {"input": torch.zeros(1, 4)})
    assert one == score([*linears(4, 6), *linears(6, 3)])
    assert one == score(layers, {"input": torch.randn(7, 4)})
    block = naspipe.Block([lambda: nn.Linear(4, 4), nn.Identity, lambda: Skip(nn.Linear(4, 4))])
    space = naspipe.Space("mine", [block, block, naspipe.Shared("head", lambda: nn.Linear(4, 2))])
    there, back = (Synflow(space, 1, 1, {"input": torch.ones(1, 4)}) for _ in range(2))
    subnets = [(first, second) for first in range(3) for second in range(3)]
    found = [*map(there, subnets)]
    assert found == [*map(back, reversed(subnets))][::-1], "layers are made from their own seeds"
    assert found[4] < found[8], "a network of skips alone is below one that computes"
    other = Synflow(space, 2, 1, {"input": torch.ones(1, 4)})
    assert other((0, 0)) != found[0]


def test_an_elastic_subnet_has_the_score_of_its_cut():
    from naspipe.elastic import Linear

    widths = {"width": [2, 4, 8]}
    elastic = naspipe.Elastic("wide", lambda: Linear(4, 8, outputs="width"), widths)
    head = naspipe.Elastic("head", lambda: Linear(8, 3, inputs="width"), widths)
    space = naspipe.Space("elastic", [elastic, head])
    torch.manual_seed(0)
    for option, width in enumerate(widths["width"]):
        found = Synflow(space, 1, 1, {"input": torch.ones(1, 4)})
        whole = found._layers.modules((option, option))
        first, second = whole[0].cut(width=width), whole[1].cut(width=width)
        assert found((option, option)) == pytest.approx(score([first, second]), rel=1e-14)


def test_where_nothing_flows_it_is_least():
    silent = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(silent.weight)
    assert score([silent]) == score([nn.Identity()]) == -math.inf


def test_what_has_no_score_is_refused_in_one_line():
    loud = linears(*[4] * 10)
    for layer in loud:
        nn.init.constant_(layer.weight, 1e38)
    with pytest.raises(ConfigError, match="expected a flow that 64 bits hold, found inf"):
        score(loud)
    words = {"input": torch.ones(2, 3, dtype=torch.int64)}
    with pytest.raises(
        ConfigError, match=r"expected layers that read floats.* of int64, as of tok"
    ):
        score([nn.Embedding(5, 4)], words)

    class Single(nn.Module):
        def forward(self, x):
            return functional.linear(x, torch.ones(2, 4))

    with pytest.raises(ConfigError, match=r"layer 0\.0: expected a layer that computes .*float64"):
        score([Single()])
