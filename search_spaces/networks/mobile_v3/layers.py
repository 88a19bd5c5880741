"""The modules of MobileNetV3; images are (batch, channels, height, width)."""

from __future__ import annotations

import torch
from torch import nn

from search_spaces.networks.mobile.layers import normed as plainly_normed
from search_spaces.networks.mobile_v3.filters import Filters

_SQUEEZED = 4
"""Ratio of inner channels to the channels inside a gate."""


def normed(
    inputs: int, outputs: int, size: int, stride: int = 1, *, is_hard_swish: bool
) -> nn.Module:
    """Return a convolution with its norm and activation."""
    activation = nn.Hardswish() if is_hard_swish else nn.ReLU()
    return nn.Sequential(*plainly_normed(inputs, outputs, size, stride), activation)


class Gate(nn.Module):
    """Squeeze and excite: each channel is scaled by a function of the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(8, int(channels / _SQUEEZED + 4) // 8 * 8)
        self.says = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.says(images)
        return images * found


class SeparableResidual(nn.Module):
    """Expand, filter each channel separately, gate, project; a skip if the shape is unchanged.

    Args:
        inputs: number of input channels.
        filters: sizes of the residual; there is no expansion if it has as many inner channels.
    """

    def __init__(self, inputs: int, filters: Filters) -> None:
        super().__init__()
        inner, swish = filters.inner, filters.is_hard_swish
        widening = [normed(inputs, inner, 1, is_hard_swish=swish)] if inner != inputs else []
        depthwise = plainly_normed(inner, inner, filters.size, filters.stride, depthwise=True)
        self.adds = filters.stride == 1 and inputs == filters.outputs
        self.branch = nn.Sequential(
            *widening, *depthwise, nn.Hardswish() if swish else nn.ReLU(),
            *([Gate(inner)] if filters.squeezes else []),
            *plainly_normed(inner, filters.outputs, 1),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height / stride, ...)."""
        found: torch.Tensor = self.branch(images)
        return images + found if self.adds else found


def classifier(inputs: int, hidden: int, classes: int) -> nn.Module:
    """Return the mean over each channel, a linear layer, and a score for each class."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, hidden), nn.Hardswish(),
        nn.Dropout(0.2), nn.Linear(hidden, classes),
    )  # fmt: skip
