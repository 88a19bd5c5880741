"""The blocks of MobileNetV3-Small (Howard et al. 2019, table 2).

There are eleven depthwise-separable residuals between a stem and a classifier. A scale multiplies
widths. Small images are halved less often: the stem does not halve them, and maps of odd size have
no stride.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Rule
from search_spaces.common import Defaults, cross_entropy
from search_spaces.networks.mobile.shapes import LARGE, MULTIPLIERS
from search_spaces.networks.mobile_v3.filters import FILTERS, Filters

NAMES = ("mobilenet-v3",)

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {}


STEM, MIX, HIDDEN = 16, 576, 1024
"""Channels of the first convolution, of the last 1x1 one, and of the linear layer after it."""


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of the network; there is nothing to choose."""
    by = MULTIPLIERS[scale]
    side = min(info["height"], info["width"])
    is_large = side >= LARGE
    side = side // 2 if is_large else side
    inputs = eights(STEM * by)
    blocks = [Block([partial(_stem, info["channels"], inputs, 2 if is_large else 1)])]
    for each in FILTERS:
        stride = each.stride if side % 2 == 0 else 1
        side //= stride
        inner, outputs = eights(each.inner * by), eights(each.outputs * by)
        found = each._replace(inner=inner, outputs=outputs, stride=stride)
        blocks.append(Block([partial(_residual, inputs, found)]))
        inputs = outputs
    mix, hidden = eights(MIX * by), eights(HIDDEN * by)
    blocks.append(Block([partial(_mix, inputs, mix)]))
    blocks.append(Block([partial(_classifier, mix, hidden, info["classes"])]))
    return [*blocks]


def eights(width: float) -> int:
    """Return the nearest multiple of 8, at least 8 and at least nine tenths of the width."""
    found = max(8, int(width + 4) // 8 * 8)
    return found if found >= 0.9 * width else found + 8


def defaults(name: str, scale: str) -> Defaults:
    return Defaults(
        data="fashion-mnist",
        batch_size=64,
        optimizer="SGD",
        lr=0.05,
        optimizer_options=MappingProxyType({"momentum": 0.9, "weight_decay": 1e-5}),
        schedule="cosine",
        loss=cross_entropy,
    )


# Factories import torch's modules only when they make one.


def _stem(channels: int, width: int, stride: int) -> Any:
    from search_spaces.networks.mobile_v3.layers import normed

    return normed(channels, width, 3, stride, is_hard_swish=True)


def _residual(inputs: int, filters: Filters) -> Any:
    from search_spaces.networks.mobile_v3.layers import SeparableResidual

    return SeparableResidual(inputs, filters)


def _mix(inputs: int, outputs: int) -> Any:
    from search_spaces.networks.mobile_v3.layers import normed

    return normed(inputs, outputs, 1, is_hard_swish=True)


def _classifier(inputs: int, hidden: int, classes: int) -> Any:
    from search_spaces.networks.mobile_v3.layers import classifier

    return classifier(inputs, hidden, classes)
