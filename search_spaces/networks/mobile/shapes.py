"""Widths and strides of MobileNetV2, for the network and for its students."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WIDTHS = (24, 32, 64, 96, 160, 320)
"""Output channels of each stage, at width 1 (Sandler et al. 2018, table 2)."""

LAYERS = (2, 3, 4, 3, 3, 1)
"""Number of inverted residuals in each stage."""

STRIDES = (2, 2, 2, 1, 2, 1)
"""Stride of each stage's first residual, for large images."""

MULTIPLIERS = {"tiny": 0.25, "small": 0.5, "paper": 1.0}
"""Factors of all widths, by scale."""

STEM, FIRST, MIX = 32, 16, 1280
"""Channels of the first convolution, of the residual after it, and of the last 1x1 convolution."""

LARGE = 64
"""Image size in pixels from which the stem and the first stage halve an image."""


class Stage(NamedTuple):
    """The residuals of one width; the stride is that of the first."""

    inputs: int
    outputs: int
    stride: int


class Shapes(NamedTuple):
    """The shapes of a whole network."""

    channels: int
    stem: int
    stem_stride: int
    first: int
    stages: tuple[Stage, ...]
    mix: int
    classes: int


def shapes(scale: str, info: Mapping[str, int]) -> Shapes:
    """Return the shapes of a network for such images; maps of odd size are not halved."""
    by = MULTIPLIERS[scale]
    side = min(info["height"], info["width"])
    is_large = side >= LARGE
    side = side // 2 if is_large else side
    stages: list[Stage] = []
    inputs = _eights(FIRST * by)
    for number, width in enumerate(WIDTHS):
        wanted = STRIDES[number] if number or is_large else 1
        stride = wanted if side % 2 == 0 else 1
        side //= stride
        stages.append(Stage(inputs, _eights(width * by), stride))
        inputs = stages[-1].outputs
    stem, first, mix = (_eights(width * by) for width in (STEM, FIRST, MIX))
    return Shapes(
        info["channels"], stem, 2 if is_large else 1, first, tuple(stages), mix, info["classes"]
    )


def _eights(width: float) -> int:
    """Return the nearest multiple of 8, at least 8."""
    return max(8, int(width + 4) // 8 * 8)
