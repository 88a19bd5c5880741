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


def apply_own(module, x, *, inner, width):
    if module.training:
        module.seen[:width] += x.detach().mean()
    weight, bias = module.linear.weight[:width, :inner], module.linear.bias[:width]
    return module.drop(torch.tanh(functional.linear(x, weight, bias)))


def cut_own(module, *, inner, width):
    found = nn.Linear(inner, width)
    with torch.no_grad():
        found.weight.copy_(module.linear.weight[:width, :inner])
        found.bias.copy_(module.linear.bias[:width])
    return nn.Sequential(found, nn.Tanh())


class Gate(nn.Module):
    """A layer of a choice block that takes any width."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return x * self.weight[: x.shape[1]]


def linears(rule=None):
    """One width of all layers, a choice block, a layer with a width of its own, a user's."""
    rule, width = rule or npp.Exact(), {"width": WIDTHS}
    inner = {"inner": [8, 16]}
    is_exact = isinstance(rule, npp.Exact)  # otherwise a forward may write no buffer
    last = (Own, apply_own, cut_own) if is_exact else (
        lambda: Linear(16, 16, inputs="inner", outputs="width"), None, None
    )  # fmt: skip
    return npp.Space("linears", [
        npp.Elastic("stem", lambda: Sequential(Linear(12, 16, outputs="width"), nn.Tanh()),
                    width, rule),
        npp.Elastic("fc", lambda: Linear(16, 16, inputs="width", outputs="width"), width, rule),
        npp.Block([lambda: Sequential(LayerNorm(16), nn.ReLU()), Gate, nn.Identity]),
        npp.Elastic("inner", lambda: Linear(16, 16, inputs="width", outputs="inner"),
                    {**width, **inner}, rule),
        npp.Elastic("own", last[0], {**inner, **width}, rule, apply=last[1], cut=last[2]),
        npp.Elastic("head", lambda: Linear(16, 3, inputs="width"), width, rule),
    ])  # fmt: skip


def images(rule=None):
    """Widths and kernels of convolutions with batch norm, which keeps one layer's statistics.

    Layers that are read late have none, as a forward may write no buffer there.
    """
    width, kernel = {"width": WIDTHS}, {"kernel": [1, 3, 5]}
    norms = [] if rule else [lambda: BatchNorm2d(16, inputs="width")]

    def normed(layer):
        return [layer, *(make() for make in norms)]

    def cell(number):
        first = DepthwiseConv2d(16, 5, inputs="width", kernel=f"kernel{number}")
        last = Conv2d(16, 16, 1, bias=False, inputs="width", outputs="width")
        return Residual(*normed(first), nn.ReLU(), last)

    def stem():
        return Sequential(*normed(Conv2d(3, 16, 3, outputs="width", bias=False)))

    rule = rule or npp.Exact()
    return npp.Space("maps", [
        npp.Elastic("stem", stem, width, rule),
        npp.Elastic("one", lambda: cell(1), {**width, "kernel1": kernel["kernel"]}, rule),
        npp.Elastic("two", lambda: cell(2), {**width, "kernel2": kernel["kernel"]}, rule),
        npp.Shared("pool", lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
        npp.Elastic("head", lambda: Linear(16, 3, inputs="width"), width, rule),
    ])  # fmt: skip


def texts(rule=None):
    """A transformer with elastic heads, width and depth."""
    rule, width = rule or npp.Exact(), {"width": [8, 16]}

    def layer(place):
        heads = f"heads{place}"
        attention = Attention(16, 4, 4, inputs="width", heads=heads, causal=True)
        fed = Linear(16, 32, inputs="width"), nn.GELU(), Linear(32, 16, outputs="width")
        norms = [LayerNorm(16, inputs="width") for _ in range(2)]
        parts = Residual(norms[0], attention), Residual(norms[1], *fed)
        return Depth(Sequential(*parts), place)

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
        npp.Elastic("head", lambda: Linear(16, 20, inputs="width"), width, rule),
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
