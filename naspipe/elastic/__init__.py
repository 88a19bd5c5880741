"""Layers with several settings, for :class:`naspipe.Elastic`.

Each is created with its largest sizes, lists the settings that determine its sizes, and takes them
in its forward. A setting uses the first rows and columns of a weight. ``cut`` creates the plain
layer.

========================= ==========================================================================
:class:`Linear`            widths of input and output
:class:`Embedding`         width of the output
:class:`Conv2d`            channels of input and output, kernel
:class:`DepthwiseConv2d`   channels, kernel
:class:`BatchNorm1d`       channels, and :class:`BatchNorm2d`
:class:`LayerNorm`         width
:class:`Attention`         number of heads, width
:class:`Sequential`        modules in sequence, elastic or plain
:class:`Residual`          the same, with a skip connection
:class:`Depth`             a module that may be skipped
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
