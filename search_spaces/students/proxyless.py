"""A supernet like ProxylessNAS (Cai et al. 2019), distilled from MobileNetV2 stage by stage.

A layer is one of six MBConvs: kernel 3, 5 or 7, expansion 3 or 6. All layers of a stage except the
first may also be skipped, which is the last candidate. All layers of a stage have the teacher's
width. The stem, the 1x1 convolution and the classifier have the teacher's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from naspipe.config.blocks import Block, Shared
from search_spaces.networks.mobile.shapes import Shapes, Stage, shapes
from search_spaces.students.kind import StudentKind

OPERATIONS = tuple((size, expansion) for expansion, size in product((3, 6), (3, 5, 7)))
"""Kernel and expansion of the candidates, in order."""

LAYERS = {
    "tiny": (2, 3, 3, 3, 3, 1), "small": (2, 4, 4, 4, 4, 1), "paper": (2, 4, 4, 4, 4, 1)
}  # fmt: skip
"""Number of layers of each stage."""


def chains(teacher: str, scale: str, info: Mapping[str, int]) -> list[list[Block | Shared]]:
    found = shapes(scale, info)
    stages = zip(found.stages, LAYERS[scale], strict=True)
    blocks = [_stage(number, *each) for number, each in enumerate(stages)]
    blocks[0] = [*_begin(found), *blocks[0]]
    blocks[-1] = [*blocks[-1], *_end(found)]
    return blocks


def _stage(number: int, stage: Stage, layers: int) -> list[Block | Shared]:
    inner = Stage(stage.outputs, stage.outputs, 1)
    may_skip = [partial(_layer, inner, *each) for each in OPERATIONS] + [_nothing]
    return [
        Block([partial(_layer, stage, *each) for each in OPERATIONS]),
        *(Block(may_skip, kind=f"stage{number}") for _ in range(layers - 1)),
    ]


def _begin(found: Shapes) -> list[Block | Shared]:
    return [
        Shared("stem", partial(_stem, found.channels, found.stem, found.stem_stride)),
        Shared("first", partial(_layer, Stage(found.stem, found.first, 1), 3, 1)),
    ]


def _end(found: Shapes) -> list[Block | Shared]:
    return [
        Shared("mix", partial(_mix, found.stages[-1].outputs, found.mix)),
        Shared("classifier", partial(_classifier, found.mix, found.classes)),
    ]


# Factories import torch's modules only when they make one.


def _layer(stage: Stage, size: int, expansion: int) -> Any:
    from search_spaces.networks.mobile.layers import InvertedResidual

    return InvertedResidual(stage.inputs, stage.outputs, size, stage.stride, expansion)


def _nothing() -> Any:
    from torch import nn

    return nn.Identity()


def _stem(channels: int, width: int, stride: int) -> Any:
    from search_spaces.networks.mobile.layers import stem

    return stem(channels, width, stride)


def _mix(inputs: int, outputs: int) -> Any:
    from search_spaces.networks.mobile.layers import mix

    return mix(inputs, outputs)


def _classifier(inputs: int, classes: int) -> Any:
    from search_spaces.networks.layers import classifier

    return classifier(inputs, classes)


KIND = StudentKind(teachers=("mobilenet-v2",), recipe="blockwise", chains=chains)
