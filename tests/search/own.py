"""A small space of a user's own, for the command line: its data name what they hold out."""

from __future__ import annotations

from torch import nn

from tests.equivalence import spaces

space = spaces.mixed(blocks=4)
loss = nn.CrossEntropyLoss()


def batches(seed, sequence_id):
    return spaces.vectors(seed, sequence_id)


def held(seed, number):
    return spaces.vectors(seed + 77, number)


def others(seed, sequence_id):
    return spaces.vectors(seed + 1, sequence_id)
