"""The modules of networks for views, and of vision transformers.

Images are float32 of (batch, channels, height, width), tokens are (batch, token, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2016, figure 3)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        is_same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height / stride, ...)."""
        return torch.relu(self.shortcut(images) + self.branch(images))


def halving_stem(channels: int, width: int) -> nn.Module:
    """Return a 3x3 convolution of stride 2 with its norm and activation."""
    first = nn.Conv2d(channels, width, 3, 2, padding=1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU())


class Patches(nn.Module):
    """A vector for each patch of an image, plus a position embedding."""

    def __init__(self, channels: int, width: int, tokens: int, size: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, size, size)
        self.places = nn.Parameter(torch.empty(tokens, width))
        nn.init.normal_(self.places, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, token, width)."""
        tokens: Tensor = self.project(images).flatten(2).transpose(1, 2) + self.places
        return tokens


class Transformer(nn.Module):
    """Attention and a hidden layer, each after a norm (Dosovitskiy et al. 2021, equation 2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.hidden, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the same shape."""
        batch, length, width = x.shape
        projected = self.projections(self.attention_norm(x))
        q, k, v = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = ((q * q.size(-1) ** -0.5) @ k.transpose(2, 3)).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.output(F.gelu(self.hidden(self.norm(x))))
        return out

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class Pooled(nn.Module):
    """The mean over an image's pixels, or over its tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) or (batch, token, width) to (batch, features)."""
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def head(widths: Sequence[int], *, ends_in_norm: bool) -> nn.Module:
    """Return linear layers, each but the last with a norm and an activation."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    parts = parts[:-2]
    if ends_in_norm:
        parts.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*parts)


def projector(features: int, hidden: int, out: int, depth: int) -> nn.Module:
    """Return pooling and ``depth`` linear layers; with three, the last has a norm after it."""
    widths = [features, *[hidden] * (depth - 1), out]
    return nn.Sequential(Pooled(), head(widths, ends_in_norm=depth > 2))


def classifier(width: int, classes: int) -> nn.Module:
    """Return a score for each class of the pooled features."""
    return nn.Sequential(nn.LayerNorm(width), Pooled(), nn.Linear(width, classes))
