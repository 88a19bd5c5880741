"""The parts of the plain networks, as their specification names them."""

from __future__ import annotations

from typing import NamedTuple


class Conv(NamedTuple):
    """A 3x3 convolution of VGG's, with its activation."""

    inputs: int
    outputs: int
    pools: bool
    """Halve height and width behind it."""


class Bottleneck(NamedTuple):
    """Of ResNet's: 1x1, 3x3 and 1x1 convolutions, each with batch normalisation."""

    inputs: int
    width: int
    stride: int


EXPANSION = 4
"""Channels that leave a bottleneck, over its width."""
