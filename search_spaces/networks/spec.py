"""VGG-16 and -19, ResNet-50, -101 and -152: what their blocks are.

The layers are those of the papers (Simonyan and Zisserman 2015, table 1, D and E; He et al. 2016,
table 1). A scale changes widths; an image that is too small for a pool or a stride goes without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.core.rules import Rule
from naspipe.core.space import Block, Shared
from search_spaces.common import Defaults
from search_spaces.networks.parts import EXPANSION, Bottleneck, Conv

WIDTHS = {"tiny": 8, "small": 32, "paper": 64}
"""Channels of the first convolution."""

HIDDEN = {"tiny": 1152, "small": 2048, "paper": 4096}
"""Of VGG's linear layers, which have most of all parameters."""

VGG = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
"""Convolutions before each pool."""

RESNET = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
"""Bottlenecks of each width."""

NAMES = (*VGG, *RESNET)

INFO = ("channels", "height", "width", "classes")
"""What the data has to state."""

SHARED_RULES: dict[str, Rule] = {}

_LARGE = 64
"""Pixels from which on ResNet's stem is that of ImageNet: 7x7, a stride and a pool."""


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """The blocks of a network; there is nothing to choose."""
    parts = _vgg if name in VGG else _resnet
    return [Block([part]) for part in parts(name, scale, info)]


def defaults(name: str, scale: str) -> Defaults:
    """What a run uses unless its user says otherwise."""
    return Defaults(
        data="fashion-mnist",
        batch_size={"tiny": 8, "small": 16, "paper": 32}[scale],
        optimizer="SGD",
        lr=0.01,
        optimizer_options=MappingProxyType({"momentum": 0.9}),
        loss=_loss,
    )


def _vgg(name: str, scale: str, info: Mapping[str, int]) -> Iterator[Callable[[], Any]]:
    inputs, size = info["channels"], min(info["height"], info["width"])
    height, width = info["height"], info["width"]
    for number, count in enumerate(VGG[name]):
        outputs = WIDTHS[scale] * min(8, 2**number)
        for place in range(count):
            pools = place == count - 1 and size > 1
            yield partial(_conv, Conv(inputs, outputs, pools))
            inputs = outputs
        if size > 1:
            size, height, width = size // 2, height // 2, width // 2
    hidden = HIDDEN[scale]
    yield partial(_linear, inputs * height * width, hidden, is_last=False)
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


def _loss() -> Any:
    from torch import nn

    return nn.CrossEntropyLoss()
