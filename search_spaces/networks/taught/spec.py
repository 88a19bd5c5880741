"""A vision transformer as a teacher, and a convolutional network that learns from it.

Both are for small images and have eight blocks between the first and the last. A scale changes
widths, never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Rule
from search_spaces.common import Defaults

NAMES = ("vit", "cnn")

BLOCKS = 8

PATCH = 4
"""Side of a patch in pixels."""

WIDTHS = {
    "vit": {"tiny": 48, "small": 192, "paper": 384},
    "cnn": {"tiny": 16, "small": 32, "paper": 64},
}
HEADS = {"tiny": 4, "small": 6, "paper": 6}

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {}


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a network; there is nothing to choose."""
    width = WIDTHS[name][scale]
    if name == "vit":
        tokens = (info["height"] // PATCH) * (info["width"] // PATCH)
        first = partial(_patches, info["channels"], width, tokens)
        inner = [Block([partial(_encoder, width, HEADS[scale])], kind="encoder")] * BLOCKS
        last = partial(_token_classifier, width, info["classes"])
    else:
        first = partial(_convolution, info["channels"], width, 1)
        widths = [width * (1 + (number > 2) + 2 * (number > 5)) for number in range(-1, BLOCKS)]
        inner = [
            Block([partial(_convolution, before, behind, 2 if before < behind else 1)])
            for before, behind in pairwise(widths)
        ]
        last = partial(_image_classifier, widths[-1], info["classes"])
    return [Block([first]), *inner, Block([last])]


def defaults(name: str, scale: str) -> Defaults:
    is_vit = name == "vit"
    return Defaults(
        data="fashion-mnist",
        batch_size=64,
        optimizer="AdamW" if is_vit else "SGD",
        lr=1e-3 if is_vit else 0.1,
        optimizer_options=MappingProxyType(
            {} if is_vit else {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
        ),
        schedule="cosine",
        loss=_soft_target,
    )


# Factories import torch's modules only when they make one.


def _patches(channels: int, width: int, tokens: int) -> Any:
    from search_spaces.networks.views.layers import Patches

    return Patches(channels, width, tokens, PATCH)


def _encoder(width: int, heads: int) -> Any:
    from search_spaces.networks.views.layers import Transformer

    return Transformer(width, heads)


def _token_classifier(width: int, classes: int) -> Any:
    from search_spaces.networks.views.layers import classifier

    return classifier(width, classes)


def _convolution(inputs: int, outputs: int, stride: int) -> Any:
    from search_spaces.networks.taught.layers import convolution

    return convolution(inputs, outputs, stride)


def _image_classifier(inputs: int, classes: int) -> Any:
    from search_spaces.networks.layers import classifier

    return classifier(inputs, classes)


def _soft_target() -> Any:
    from naspipe.losses import SoftTarget

    return SoftTarget()
