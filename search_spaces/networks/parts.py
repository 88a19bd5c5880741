"""The parts of the plain networks, as named in their specification."""

from __future__ import annotations

from typing import NamedTuple


class Conv(NamedTuple):
    """A 3x3 convolution of VGG, with its activation."""

    inputs: int
    outputs: int
    pools: bool
    """True to halve height and width after it."""


class Bottleneck(NamedTuple):
    """A bottleneck of ResNet: 1x1, 3x3 and 1x1 convolutions, each with batch normalisation."""

    inputs: int
    width: int
    stride: int


EXPANSION = 4
"""Ratio of a bottleneck's output channels to its width."""
