"""Small spaces of elastic layers, each kind that there is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.elastic import (
    Attention,
    BatchNorm2d,
    Conv2d,
    Depth,
    DepthwiseConv2d,
    Embedding,
    LayerNorm,
    Linear,
    Residual,
    Sequential,
)

WIDTHS = [4, 8, 16]


class Own(nn.Module):
    """A user's module, which knows nothing of settings; its dropout draws as much as is used."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(16, 16), nn.Dropout(0.1)
        self.register_buffer("seen", torch.zeros(16))


def apply_own(module, x, *, width):
    if module.training:
        module.seen[:width] += x.detach().mean()
    weight, bias = module.linear.weight[:width, : x.shape[1]], module.linear.bias[:width]
    return module.drop(torch.tanh(functional.linear(x, weight, bias)))


def linears(rule=None):
    """One width of all layers, a choice block, a layer with a width of its own, a user's."""
    rule, width = rule or npp.Exact(), {"width": WIDTHS}
    first = Sequential, lambda: Linear(12, 16, outputs="width")
    wide = [
        lambda: Sequential(LayerNorm(16, inputs="width"), nn.ReLU()),
        lambda: Linear(16, 16, inputs="width"),
    ]
    return npp.Space("linears", [
        npp.Elastic("stem", lambda: first[0](first[1](), nn.Tanh()), width, rule),
        npp.Elastic("fc", lambda: Linear(16, 16, inputs="width", outputs="width"), width, rule),
        npp.Block([lambda: wide[0](), lambda: wide[1](), nn.Identity]),
        npp.Elastic("inner", lambda: Linear(16, 16, outputs="inner"), {"inner": [8, 16]}, rule),
        npp.Elastic(
            "own", Own if isinstance(rule, npp.Exact) else lambda: Linear(16, 16, outputs="width"),
            width, rule, apply=apply_own if isinstance(rule, npp.Exact) else None,
        ),
        npp.Shared("head", lambda: Linear(16, 3), rule),
    ])  # fmt: skip


def images():
    """Widths and kernels of convolutions with batch norm, which keeps one layer's statistics."""
    width, kernel = {"width": WIDTHS}, {"kernel": [1, 3, 5]}

    def cell(number):
        name = f"kernel{number}"
        parts = DepthwiseConv2d(16, 5, kernel=name), BatchNorm2d(16)
        return Residual(*parts, nn.ReLU(), Conv2d(16, 16, 1, outputs="width", bias=False))

    return npp.Space("maps", [
        npp.Elastic("stem", lambda: Sequential(
            Conv2d(3, 16, 3, outputs="width", bias=False), BatchNorm2d(16)), width),
        npp.Elastic("one", lambda: cell(1), {**width, "kernel1": kernel["kernel"]}),
        npp.Elastic("two", lambda: cell(2), {**width, "kernel2": kernel["kernel"]}),
        npp.Shared("pool", lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
        npp.Shared("head", lambda: Linear(16, 3)),
    ])  # fmt: skip


def texts(rule=None):
    """A transformer with elastic heads, width and depth."""
    rule, width = rule or npp.Exact(), {"width": [8, 16]}

    def layer(place):
        heads = f"heads{place}"
        attention = Residual(LayerNorm(16), Attention(16, 4, 4, heads=heads, causal=True))
        fed = Linear(16, 32), nn.GELU(), Linear(32, 16, outputs="width")
        return Depth(Sequential(attention, Residual(LayerNorm(16), *fed)), place)

    blocks = [
        npp.Elastic(
            f"layer{place}", lambda place=place: layer(place),
            {**width, f"heads{place}": [1, 2, 4], "depth": [1, 2, 3]}, rule,
        )
        for place in range(3)
    ]  # fmt: skip
    return npp.Space("texts", [
        npp.Elastic("embedding", lambda: Embedding(20, 16, outputs="width"), width, rule),
        *blocks,
        npp.Shared("head", lambda: Linear(16, 20), rule),
    ])  # fmt: skip


def _drawn(seed, number):
    return torch.Generator().manual_seed(seed * 100_003 + number)


def vectors(seed, number):
    draw = _drawn(seed, number)
    x = torch.randn(6, 12, generator=draw)
    return {"input": x, "target": torch.randint(0, 3, (6,), generator=draw)}


def maps(seed, number):
    draw = _drawn(seed, number)
    x = torch.randn(4, 3, 6, 6, generator=draw)
    return {"input": x, "target": torch.randint(0, 3, (4,), generator=draw)}


def tokens(seed, number):
    row = torch.randint(0, 20, (3, 7), generator=_drawn(seed, number))
    return {"input": row[:, :-1], "target": row[:, 1:]}


class TokenLoss:
    """Cross entropy of every place; a sandwich's others learn the largest one's output."""

    ignore_index = -100

    def __call__(self, output, target):
        return functional.cross_entropy(output.transpose(1, 2), target)
