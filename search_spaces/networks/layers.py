"""The modules of the plain networks; images are float32 of (batch, channels, height, width)."""

from __future__ import annotations

import torch
from torch import nn

from search_spaces.networks.parts import EXPANSION, Bottleneck, Conv


def conv(spec: Conv) -> nn.Module:
    """Return a convolution of VGG with its activation, and the pooling after it, if any."""
    pool = [nn.MaxPool2d(2)] if spec.pools else []
    return nn.Sequential(nn.Conv2d(spec.inputs, spec.outputs, 3, padding=1), nn.ReLU(), *pool)


def linear(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    """Return a linear layer of VGG; all but the last have an activation and dropout."""
    behind = [] if is_last else [nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs), *behind)


def stem(channels: int, width: int, is_large: bool) -> nn.Module:
    """Return ResNet's first convolution, for ImageNet's images or for small ones."""
    size, stride = (7, 2) if is_large else (3, 1)
    pool = [nn.MaxPool2d(3, 2, padding=1)] if is_large else []
    first = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), *pool)


class Residual(nn.Module):
    """A bottleneck with a shortcut, which is projected if the shape changes."""

    def __init__(self, spec: Bottleneck) -> None:
        super().__init__()
        outputs = EXPANSION * spec.width
        self.branch = nn.Sequential(
            *_normed(spec.inputs, spec.width, 1), nn.ReLU(),
            *_normed(spec.width, spec.width, 3, spec.stride), nn.ReLU(),
            *_normed(spec.width, outputs, 1),
        )  # fmt: skip
        is_same = spec.inputs == outputs and spec.stride == 1
        projection = _normed(spec.inputs, outputs, 1, spec.stride)
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*projection)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, inputs, height, width) to (batch, 4 * width, height / stride, ...)."""
        return torch.relu(self.shortcut(images) + self.branch(images))


def _normed(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    first = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return [first, nn.BatchNorm2d(outputs)]


def classifier(inputs: int, classes: int) -> nn.Module:
    """Return the mean over each channel, followed by a score for each class."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
