"""A small space for the command line, whose steps take long enough to be ended half-way."""

from __future__ import annotations

import time

from torch import nn

from tests.equivalence import spaces

space = spaces.mixed()
loss = nn.CrossEntropyLoss()


def batches(seed, sequence_id):
    time.sleep(0.01)
    return spaces.vectors(seed, sequence_id)


def held(seed, number):
    return spaces.vectors(seed + 77, number)
