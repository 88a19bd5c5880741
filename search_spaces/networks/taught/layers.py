"""The modules of networks that learn from a teacher."""

from __future__ import annotations

from torch import nn


def convolution(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a 3x3 convolution with its norm and activation."""
    first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(outputs), nn.ReLU())
