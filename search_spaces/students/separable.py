"""VGG with depthwise separable convolutions, distilled convolution by convolution.

There is nothing to choose: a teacher's convolution is replaced by one for each channel and a 1x1
convolution across them (Blakeney et al. 2020). The first one is not replaced, because it may have
only one channel. A single linear layer replaces the linear layers and learns their final output.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from naspipe.config.blocks import Block, Shared
from search_spaces.networks.parts import Conv
from search_spaces.networks.spec import VGG, convolutions
from search_spaces.students.kind import StudentKind


def chains(teacher: str, scale: str, info: Mapping[str, int]) -> list[list[Block | Shared]]:
    found, left = convolutions(teacher, scale, info)
    made = [_whole, *[_separable] * (len(found) - 1)]
    blocks: list[list[Block | Shared]] = [
        [Block([partial(make, each)])] for make, each in zip(made, found, strict=True)
    ]
    blocks[-1].append(Shared("classifier", partial(_linear, left, info["classes"])))
    return blocks


# Factories import torch's modules only when they make one.


def _whole(spec: Conv) -> Any:
    from search_spaces.students.layers import whole

    return whole(spec)


def _separable(spec: Conv) -> Any:
    from search_spaces.students.layers import separable

    return separable(spec)


def _linear(inputs: int, outputs: int) -> Any:
    from search_spaces.networks.layers import linear

    return linear(inputs, outputs, is_last=True)


KIND = StudentKind(teachers=tuple(VGG), recipe="blockwise-compress", chains=chains)
