"""Spaces whose constructors filter: NNI's models have other paths than the space."""

from __future__ import annotations

import nni
import nni.nas.nn.pytorch as nas
import torch
from nni.nas.hub.pytorch.proxylessnas import ConvBNReLU, simplify_sequential
from torch import nn

WIDTH = 4


def without_identities(*layers):
    """As simplify_sequential does it, without taking sequences apart."""
    return nn.Sequential(*[layer for layer in layers if not isinstance(layer, nn.Identity)])


def simplified(*layers):
    return nn.Sequential(*simplify_sequential(layers))


def conv(kernel=1):
    return nn.Conv2d(WIDTH, WIDTH, kernel, padding=kernel // 2)


def wide(label, inside=WIDTH):
    """Two convolutions around a width that is chosen."""
    width = nni.choice(f"{label}_width", [2, 6])
    return nas.MutableConv2d(inside, width, 1), nas.MutableConv2d(width, inside, 1)


def maybe(label, *others):
    return nas.LayerChoice([nn.Identity(), *(others or (conv(),))], label=label)


class Filtered(nas.ModelSpace):
    """A stem, a body, a head; the body is what differs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 1)
        self.body = self.make_body()
        self.head = nn.Linear(WIDTH, 10)

    def make_body(self):
        raise NotImplementedError

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Cell(Filtered):
    """The one that was seen: a convolution of an open size behind a choice that may vanish."""

    def make_body(self):
        first, second = wide("a")
        return without_identities(maybe("op"), first, nn.ReLU(), second, nn.ReLU())


class Vanishing(Filtered):
    """Several choices in a row, before, between and behind open sizes; all of them may vanish."""

    def make_body(self):
        first, second = wide("a")
        third, fourth = wide("b")
        return without_identities(
            maybe("p"), maybe("q", conv(3)), first, maybe("r", nn.Tanh()), second,
            maybe("s"), third, nn.ReLU(), fourth, maybe("t", conv(), conv(3)),
        )  # fmt: skip


class Around(Filtered):
    """Two different choices with an identity around open sizes of the same shapes."""

    def make_body(self):
        width = nni.choice("width", [4, 6])
        return without_identities(
            nas.LayerChoice([nn.Identity(), nn.Conv2d(WIDTH, WIDTH, 1)], label="before"),
            nas.MutableConv2d(WIDTH, width, 1), nn.ReLU(),
            nas.MutableConv2d(width, width, 1), nas.MutableConv2d(width, WIDTH, 1),
            nas.LayerChoice([nn.Conv2d(WIDTH, WIDTH, 1), nn.Identity()], label="behind"),
            nn.BatchNorm2d(WIDTH),
        )  # fmt: skip


class Nested(Filtered):
    """A filtered cell in a filtered cell, in a residual block, in a Repeat."""

    def make_body(self):
        def block(index):
            first, second = wide(f"w{index}")
            inner = without_identities(maybe(f"i{index}"), first, nn.ReLU(), second)
            return Skip(without_identities(maybe(f"o{index}", conv(3)), inner, nn.Tanh()))

        return nas.Repeat(block, (0, 3), label="depth")


class Skip(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.rand(WIDTH, 1, 1))

    def forward(self, x):
        return x + self.scale * self.body(x)


class Sequences(Filtered):
    """Sequences of sequences: candidates, repetitions and cells that NNI's model takes apart."""

    def make_body(self):
        first, second = wide("a")
        third, fourth = wide("b")
        return simplified(
            nas.LayerChoice(
                [
                    nn.Sequential(conv(), nn.Identity(), nn.BatchNorm2d(WIDTH)),
                    nn.Sequential(nn.Sequential(conv(3), nn.ReLU()), conv()),
                    nn.Identity(),
                    conv(),
                ],
                label="op",
            ),
            nn.Sequential(first, nn.ReLU(), nn.Identity(), second),
            nas.LayerChoice(
                [nn.Sequential(third, nn.Tanh(), fourth), nn.Sequential(nn.Identity())], label="w"
            ),
            nas.Repeat(lambda i: nn.Sequential(conv(), nn.ReLU()), (0, 2), label="depth"),
            nas.Repeat(lambda i: conv(), 2),
            nas.Repeat(lambda i: maybe(f"m{i}"), (1, 2), label="deep"),
            nn.Sequential(nn.Sequential(nn.Identity(), conv()), nn.ReLU()),
        )


class HubBlocks(Filtered):
    """The hub's own blocks behind a choice, with widths and kernels that are chosen."""

    def make_body(self):
        width, kernel = nni.choice("width", [4, 8]), nni.choice("kernel", [1, 3])
        return simplified(
            maybe("first", ConvBNReLU(WIDTH, WIDTH)),
            ConvBNReLU(WIDTH, width, kernel),
            maybe("second", ConvBNReLU(width, width, 1)),
            ConvBNReLU(width, WIDTH, norm_layer=nn.Identity),
        )


class Shared(Filtered):
    """A module without tensors that is called in many places, and choices that share a label."""

    def make_body(self):
        act = nn.ReLU()
        first, second = wide("a")
        return without_identities(maybe("op"), act, first, act, second, maybe("op"), act)


FILTERED = {
    each.__name__.lower(): each
    for each in (Cell, Vanishing, Around, Nested, Sequences, HubBlocks, Shared)
}
