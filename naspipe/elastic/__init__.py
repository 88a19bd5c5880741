"""Layers of many settings, for :class:`naspipe.Elastic`.

Each is made with its largest sizes, names the settings that its sizes are, and takes these in its
forward. A setting uses the first rows and columns of a weight. ``cut`` makes the plain layer.

========================= ==========================================================================
:class:`Linear`            widths of input and output
:class:`Embedding`         width of the output
:class:`Conv2d`            channels of input and output, kernel
:class:`DepthwiseConv2d`   channels, kernel
:class:`BatchNorm1d`       channels, and :class:`BatchNorm2d`
:class:`LayerNorm`         width
:class:`Attention`         number of heads, width
:class:`Sequential`        of such modules, and of plain ones
:class:`Residual`          the same, beside a skip
:class:`Depth`             a module that may be left out
========================= ==========================================================================
"""

from __future__ import annotations

from naspipe.elastic.layers import (
    Attention,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Depth,
    DepthwiseConv2d,
    Embedding,
    LayerNorm,
    Linear,
    Residual,
    Sequential,
)

__all__ = [
    "Attention", "BatchNorm1d", "BatchNorm2d", "Conv2d", "Depth", "DepthwiseConv2d", "Embedding",
    "LayerNorm", "Linear", "Residual", "Sequential",
]  # fmt: skip
