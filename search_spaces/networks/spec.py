"""The blocks of VGG-8, -16 and -19 and of ResNet-50, -101 and -152.

The layers are those of the papers (Simonyan and Zisserman 2015, table 1, D and E; He et al. 2016,
table 1). VGG-8 is a small variant: three widths, and one linear layer before the classifier. A
scale changes widths; pools and strides are omitted if an image is too small for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Rule
from search_spaces.common import Defaults, cross_entropy
from search_spaces.networks.parts import EXPANSION, Bottleneck, Conv

WIDTHS = {"tiny": 8, "small": 32, "paper": 64}
"""Channels of the first convolution; VGG-8 has twice as many at the scale tiny."""

HIDDEN = {"tiny": 1152, "small": 2048, "paper": 4096}
"""Width of VGG's linear layers, which have most of all parameters."""

VGG = {"vgg8": (2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
"""Convolutions before each pool."""

RESNET = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
"""Number of bottlenecks of each width."""

NAMES = (*VGG, *RESNET)

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {}

_LARGE = 64
"""Image size in pixels from which ResNet's stem is that for ImageNet: 7x7, a stride and a pool."""


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a network; there is nothing to choose."""
    parts = _vgg if name in VGG else _resnet
    return [Block([part]) for part in parts(name, scale, info)]


def defaults(name: str, scale: str) -> Defaults:
    is_small = name == "vgg8"
    return Defaults(
        data="fashion-mnist",
        batch_size=64 if is_small else {"tiny": 8, "small": 16, "paper": 32}[scale],
        optimizer="SGD",
        lr=0.05 if is_small else 0.01,
        schedule="cosine" if is_small else "constant",
        optimizer_options=MappingProxyType({"momentum": 0.9}),
        loss=cross_entropy,
    )


def cuts(name: str) -> tuple[int, ...]:
    """Return where a VGG is cut for blockwise distillation: at each convolution but the first."""
    return tuple(range(1, sum(VGG[name]))) if name in VGG else ()


def convolutions(name: str, scale: str, info: Mapping[str, int]) -> tuple[list[Conv], int]:
    """Return a VGG's convolutions, and the number of features after them."""
    found: list[Conv] = []
    inputs, height, width = info["channels"], info["height"], info["width"]
    first = 16 if (name, scale) == ("vgg8", "tiny") else WIDTHS[scale]
    for number, count in enumerate(VGG[name]):
        outputs = first * min(8, 2**number)
        pools = min(height, width) > 1
        for place in range(count):
            found.append(Conv(inputs, outputs, pools and place == count - 1))
            inputs = outputs
        if pools:
            height, width = height // 2, width // 2
    return found, inputs * height * width


def _vgg(name: str, scale: str, info: Mapping[str, int]) -> Iterator[Callable[[], Any]]:
    found, left = convolutions(name, scale, info)
    for each in found:
        yield partial(_conv, each)
    hidden = HIDDEN[scale] // 8 if name == "vgg8" else HIDDEN[scale]
    yield partial(_linear, left, hidden, is_last=False)
    if name != "vgg8":
        yield partial(_linear, hidden, hidden, is_last=False)
    yield partial(_linear, hidden, info["classes"], is_last=True)


def _resnet(name: str, scale: str, info: Mapping[str, int]) -> Iterator[Callable[[], Any]]:
    width, inputs = WIDTHS[scale], WIDTHS[scale]
    yield partial(_stem, info["channels"], width, min(info["height"], info["width"]) >= _LARGE)
    for number, count in enumerate(RESNET[name]):
        for place in range(count):
            stride = 2 if number and place == 0 else 1
            yield partial(_bottleneck, Bottleneck(inputs, width * 2**number, stride))
            inputs = EXPANSION * width * 2**number
    yield partial(_classifier, inputs, info["classes"])


# Factories import torch's modules only when they make one.


def _conv(conv: Conv) -> Any:
    from search_spaces.networks.layers import conv as make

    return make(conv)


def _linear(inputs: int, outputs: int, is_last: bool) -> Any:
    from search_spaces.networks.layers import linear

    return linear(inputs, outputs, is_last)


def _stem(channels: int, width: int, is_large: bool) -> Any:
    from search_spaces.networks.layers import stem

    return stem(channels, width, is_large)


def _bottleneck(bottleneck: Bottleneck) -> Any:
    from search_spaces.networks.layers import Residual

    return Residual(bottleneck)


def _classifier(inputs: int, classes: int) -> Any:
    from search_spaces.networks.layers import classifier

    return classifier(inputs, classes)
