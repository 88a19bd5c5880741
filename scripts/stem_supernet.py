"""A usual image supernet: a stem with batch normalisation, eight blocks of four convolutions.

With statistics deferred its stem may lag, so that stages do not wait for it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import naspipe as npp

WIDTH = 24
BLOCKS = 8


class Residual(nn.Module):
    """A depthwise and a pointwise convolution with batch normalisation, beside the way around."""

    def __init__(self, kernel: int, expansion: int) -> None:
        super().__init__()
        hidden = WIDTH * expansion
        self.body = nn.Sequential(
            nn.Conv2d(WIDTH, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, WIDTH, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of ``WIDTH`` channels, of any size."""
        out: torch.Tensor = x + self.body(x)
        return out


def stem() -> nn.Module:
    """From one channel of 28 x 28 to ``WIDTH`` channels of 14 x 14."""
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
    )


def head() -> nn.Module:
    """Scores of ten classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))


CANDIDATES = [partial(Residual, kernel, expansion) for kernel in (3, 5) for expansion in (2, 3)]

space = npp.Space(
    "stem",
    [
        npp.Shared("stem", stem, rule=npp.Lag(4)),
        *(npp.Block(CANDIDATES, kind="residual") for _ in range(BLOCKS)),
        npp.Shared("head", head, rule=npp.Lag(4)),
    ],
)
loss = nn.CrossEntropyLoss()
