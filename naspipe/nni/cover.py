"""Architectures that together use every layer of every block."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from naspipe.nni.decisions import LabelDecisions
from naspipe.nni.mutables import Sample

RANDOM = 3
"""Architectures drawn at random beside those that are needed."""


@dataclass(frozen=True, slots=True)
class Cover:
    """Architectures, and how many of the layers of the choice blocks are in one of them."""

    samples: tuple[Sample, ...]
    covered: int
    layers: int


def cover(decisions: LabelDecisions, most: int) -> Cover:
    """Architectures until so many layers are in one of them, or all; always the same.

    Each takes the layers that no earlier one has as far as their labels agree, from the last block
    on, because what a depth leaves out comes last; the other labels are drawn.
    """
    draw = random.Random(0)
    left = dict.fromkeys(
        (block, number)
        for block, layers in reversed(list(enumerate(decisions.blocks)))
        for number in range(len(layers.samples))
    )
    total, drawn, samples = len(left), 0, list[Sample]()
    while not samples or (total - len(left) < most and drawn < RANDOM):
        drawn += not left
        wanted = _compatible(decisions, left)
        sample = {
            label: wanted[label] if label in wanted else draw.choice(options)
            for label, options in decisions.values.items()
        }
        samples.append(sample)
        for used in enumerate(decisions.choices_of(sample)):
            left.pop(used, None)
    return Cover(tuple(samples), total - len(left), total)


def _compatible(decisions: LabelDecisions, layers: Iterable[tuple[int, int]]) -> Sample:
    """Values of labels under which an architecture has the first of these layers, and more."""
    wanted: Sample = {}
    for block, number in layers:
        wanted |= decisions.blocks[block].wanted(number, wanted) or {}
    return wanted
