"""The modules of MobileNetV2 and of its students; images are (batch, channels, height, width)."""

from __future__ import annotations

import torch
from torch import nn

_EPSILON = 1e-3


def normed(
    inputs: int, outputs: int, size: int, stride: int = 1, *, depthwise: bool = False
) -> list[nn.Module]:
    """A convolution and its norm."""
    groups = inputs if depthwise else 1
    first = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    return [first, nn.BatchNorm2d(outputs, eps=_EPSILON)]


def stem(channels: int, width: int, stride: int) -> nn.Module:
    """The first convolution, with its activation."""
    return nn.Sequential(*normed(channels, width, 3, stride), nn.ReLU6())


def mix(inputs: int, outputs: int) -> nn.Module:
    """The last convolution, 1x1, with its activation."""
    return nn.Sequential(*normed(inputs, outputs, 1), nn.ReLU6())


class InvertedResidual(nn.Module):
    """MBConv: widen, filter each channel on its own, narrow; a sum where the shape stays.

    Args:
        inputs: channels.
        outputs: channels.
        size: of the filter's side, odd.
        stride: of the filter.
        expansion: inner channels over inputs; with 1 nothing is widened.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int = 3, stride: int = 1, expansion: int = 6
    ) -> None:
        super().__init__()
        inner = expansion * inputs
        widening = [*normed(inputs, inner, 1), nn.ReLU6()] if expansion > 1 else []
        self.adds = stride == 1 and inputs == outputs
        self.branch = nn.Sequential(
            *widening,
            *normed(inner, inner, size, stride, depthwise=True), nn.ReLU6(),
            *normed(inner, outputs, 1),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height / stride, ...)."""
        found: torch.Tensor = self.branch(images)
        return images + found if self.adds else found
