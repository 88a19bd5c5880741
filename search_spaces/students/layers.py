"""The modules that students have and their teachers do not."""

from __future__ import annotations

from torch import nn

from search_spaces.networks.mobile.layers import normed
from search_spaces.networks.parts import Conv


def separable(spec: Conv) -> nn.Module:
    """Return the student of a VGG convolution: 3x3 per channel, 1x1 across them, and its pool.

    It maps (batch, inputs, height, width) to (batch, outputs, height, width), halved if it pools.
    """
    return nn.Sequential(
        *normed(spec.inputs, spec.inputs, 3, depthwise=True), nn.ReLU(),
        *normed(spec.inputs, spec.outputs, 1), nn.ReLU(), *_pool(spec),
    )  # fmt: skip


def whole(spec: Conv) -> nn.Module:
    """Return a VGG's convolution with a norm, with the same shapes as :func:`separable`."""
    return nn.Sequential(*normed(spec.inputs, spec.outputs, 3), nn.ReLU(), *_pool(spec))


def _pool(spec: Conv) -> list[nn.Module]:
    return [nn.MaxPool2d(2)] if spec.pools else []
