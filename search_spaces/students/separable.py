"""VGG with depthwise separable convolutions, taught convolution by convolution.

There is nothing to choose: a teacher's convolution becomes one for each channel and a 1x1 one
across them (Blakeney et al. 2020). Of its linear layers only one is left, which learns what all of
them say.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from naspipe.core.space import Block, Shared
from search_spaces.networks.parts import Conv
from search_spaces.networks.spec import VGG, convolutions
from search_spaces.students.kind import StudentKind


def chains(teacher: str, scale: str, info: Mapping[str, int]) -> list[list[Block | Shared]]:
    """The student block of each convolution."""
    found, left = convolutions(teacher, scale, info)
    blocks: list[list[Block | Shared]] = [[Block([partial(_separable, each)])] for each in found]
    blocks[-1].append(Shared("classifier", partial(_linear, left, info["classes"])))
    return blocks


# Factories import torch's modules only when they make one.


def _separable(spec: Conv) -> Any:
    from search_spaces.students.layers import separable

    return separable(spec)


def _linear(inputs: int, outputs: int) -> Any:
    from search_spaces.networks.layers import linear

    return linear(inputs, outputs, is_last=True)


KIND = StudentKind(teachers=tuple(VGG), recipe="blockwise-compress", chains=chains)
