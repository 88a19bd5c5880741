"""The blocks of MobileNetV2 (Sandler et al. 2018, table 2).

For blockwise distillation it is cut into six: the first part also has the stem and the residual of
16 channels, and the last part the 1x1 convolution and the classifier. A scale multiplies widths.
Small images are halved less often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Rule
from search_spaces.common import Defaults, cross_entropy
from search_spaces.networks.mobile.shapes import LAYERS, Stage, shapes

NAMES = ("mobilenet-v2",)

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {}


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of the network; there is nothing to choose."""
    found = shapes(scale, info)
    last = found.stages[-1].outputs
    return [
        Block([partial(_stem, found.channels, found.stem, found.stem_stride)]),
        Block([partial(_residual, Stage(found.stem, found.first, 1), 1)]),
        *(
            Block([partial(_residual, each, 6)])
            for stage, layers in zip(found.stages, LAYERS, strict=True)
            for each in _residuals(stage, layers)
        ),
        Block([partial(_mix, last, found.mix)]),
        Block([partial(_classifier, found.mix, found.classes)]),
    ]


def cuts(name: str) -> tuple[int, ...]:
    """Return where it is cut for blockwise distillation: after each stage except the last."""
    return tuple(accumulate(LAYERS[:-1], initial=2))[1:]


def defaults(name: str, scale: str) -> Defaults:
    return Defaults(
        data="fashion-mnist",
        batch_size=128,
        optimizer="SGD",
        lr=0.1,
        optimizer_options=MappingProxyType(
            {"momentum": 0.9, "nesterov": True, "weight_decay": 4e-5}
        ),
        schedule="cosine",
        loss=cross_entropy,
    )


def _residuals(stage: Stage, layers: int) -> Iterator[Stage]:
    """Yield the residuals; only the first one changes width and size."""
    yield stage
    for _ in range(layers - 1):
        yield Stage(stage.outputs, stage.outputs, 1)


# Factories import torch's modules only when they make one.


def _stem(channels: int, width: int, stride: int) -> Any:
    from search_spaces.networks.mobile.layers import stem

    return stem(channels, width, stride)


def _residual(stage: Stage, expansion: int) -> Any:
    from search_spaces.networks.mobile.layers import InvertedResidual

    return InvertedResidual(stage.inputs, stage.outputs, 3, stage.stride, expansion)


def _mix(inputs: int, outputs: int) -> Any:
    from search_spaces.networks.mobile.layers import mix

    return mix(inputs, outputs)


def _classifier(inputs: int, classes: int) -> Any:
    from search_spaces.networks.layers import classifier

    return classifier(inputs, classes)
