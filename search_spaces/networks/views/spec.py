"""The networks of BYOL and MoCo-v3: encoder, projector and predictor.

They follow the papers (Grill et al. 2020, section 3.3; Chen et al. 2021, section 4), with encoders
for small images. The predictor has no teacher. A scale changes widths, never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Exact, Frozen, Rule
from search_spaces.common import Defaults

NAMES = ("byol", "moco-v3")

STAGES = (3, 3, 2)
"""BYOL's residual blocks per stage. The first convolution and each later stage halve the image."""

ENCODERS = 6
"""Number of MoCo-v3's transformer blocks."""

PATCH = 4
"""Side of a patch in pixels."""

WIDTHS = {
    "byol": {"tiny": 24, "small": 48, "paper": 64},
    "moco-v3": {"tiny": 48, "small": 192, "paper": 384},
}
HEADS = {"tiny": 4, "small": 6, "paper": 12}
"""Attention heads of each transformer block."""

HIDDEN = {"tiny": 64, "small": 512, "paper": 4096}
"""Hidden widths of projector and predictor."""

OUT = {"tiny": 16, "small": 128, "paper": 256}
"""Output widths of projector and predictor."""

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {
    "stem": Exact(), "patches": Frozen(), "projector": Exact(), "predictor": Exact()
}  # fmt: skip
"""MoCo-v3's patch embedding keeps its initial values (section 4.2)."""


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a network; there is nothing to choose."""
    width, hidden, out = WIDTHS[name][scale], HIDDEN[scale], OUT[scale]
    if name == "byol":
        first = Shared("stem", partial(_stem, info["channels"], width), rule["stem"])
        inner = [Block([each]) for each in _residuals(width)]
        features, depth = 4 * width, 2
    else:
        tokens = (info["height"] // PATCH) * (info["width"] // PATCH)
        patches = partial(_patches, info["channels"], width, tokens)
        first = Shared("patches", patches, rule["patches"])
        inner = [Block([partial(_encoder, width, HEADS[scale])], kind="encoder")] * ENCODERS
        features, depth = width, 3
    return [
        first,
        *inner,
        Shared("projector", partial(_projector, features, hidden, out, depth), rule["projector"]),
        Shared("predictor", partial(_predictor, out, hidden, name), rule["predictor"]),
    ]


def defaults(name: str, scale: str) -> Defaults:
    is_byol = name == "byol"
    further = {"passes": "accumulate:8", "norms": "deferred"}
    return Defaults(
        data="views:fashion-mnist",
        batch_size=32,
        optimizer="SGD" if is_byol else "AdamW",
        lr=0.1 if is_byol else 1e-3,
        optimizer_options=MappingProxyType({"momentum": 0.9} if is_byol else {"weight_decay": 0.1}),
        schedule="cosine",
        further=MappingProxyType(further),
        loss=_agreement if is_byol else _contrast,
    )


def _residuals(width: int) -> Iterator[Callable[[], Any]]:
    inputs = width
    for stage, count in enumerate(STAGES):
        for place in range(count):
            outputs = width * 2**stage
            yield partial(_residual, inputs, outputs, 2 if stage and place == 0 else 1)
            inputs = outputs


# Factories import torch's modules only when they make one.


def _stem(channels: int, width: int) -> Any:
    from search_spaces.networks.views.layers import halving_stem

    return halving_stem(channels, width)


def _residual(inputs: int, outputs: int, stride: int) -> Any:
    from search_spaces.networks.views.layers import Basic

    return Basic(inputs, outputs, stride)


def _patches(channels: int, width: int, tokens: int) -> Any:
    from search_spaces.networks.views.layers import Patches

    return Patches(channels, width, tokens, PATCH)


def _encoder(width: int, heads: int) -> Any:
    from search_spaces.networks.views.layers import Transformer

    return Transformer(width, heads)


def _projector(features: int, hidden: int, out: int, depth: int) -> Any:
    from search_spaces.networks.views.layers import projector

    return projector(features, hidden, out, depth)


def _predictor(out: int, hidden: int, name: str) -> Any:
    from search_spaces.networks.views.layers import head

    return head([out, hidden, out], ends_in_norm=name != "byol")


def _agreement() -> Any:
    from naspipe.losses import BYOL

    return BYOL()


def _contrast() -> Any:
    from naspipe.losses import Contrastive

    return Contrastive()
