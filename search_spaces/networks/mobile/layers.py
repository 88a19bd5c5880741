"""The modules of MobileNetV2 and of its students; images are (batch, channels, height, width)."""

from __future__ import annotations

import torch
from torch import nn

_EPSILON = 1e-3


def normed(
    inputs: int, outputs: int, size: int, stride: int = 1, *, depthwise: bool = False
) -> list[nn.Module]:
    """Return a convolution and its norm."""
    groups = inputs if depthwise else 1
    first = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    return [first, nn.BatchNorm2d(outputs, eps=_EPSILON)]


def stem(channels: int, width: int, stride: int) -> nn.Module:
    """Return the first convolution, with its activation."""
    return nn.Sequential(*normed(channels, width, 3, stride), nn.ReLU6())


def mix(inputs: int, outputs: int) -> nn.Module:
    """Return the last convolution, 1x1, with its activation."""
    return nn.Sequential(*normed(inputs, outputs, 1), nn.ReLU6())


class InvertedResidual(nn.Module):
    """MBConv: expand, filter each channel separately, project; a skip if the shape is unchanged.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        size: side of the filter, odd.
        stride: stride of the filter.
        expansion: ratio of inner channels to input channels; 1 for no expansion.
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
        """Map (batch, inputs, height, width) to (batch, outputs, height / stride, ...)."""
        found: torch.Tensor = self.branch(images)
        return images + found if self.adds else found
