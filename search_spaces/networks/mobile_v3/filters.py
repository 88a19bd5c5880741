"""The residuals of MobileNetV3-Small."""

from __future__ import annotations

from typing import NamedTuple


class Filters(NamedTuple):
    """The sizes of one residual, except its inputs."""

    size: int
    inner: int
    outputs: int
    squeezes: bool
    is_hard_swish: bool
    stride: int


FILTERS = (
    Filters(3, 16, 16, True, False, 2),
    Filters(3, 72, 24, False, False, 2),
    Filters(3, 88, 24, False, False, 1),
    Filters(5, 96, 40, True, True, 2),
    Filters(5, 240, 40, True, True, 1),
    Filters(5, 240, 40, True, True, 1),
    Filters(5, 120, 48, True, True, 1),
    Filters(5, 144, 48, True, True, 1),
    Filters(5, 288, 96, True, True, 2),
    Filters(5, 576, 96, True, True, 1),
    Filters(5, 576, 96, True, True, 1),
)
"""The residuals at width 1."""
