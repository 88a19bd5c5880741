"""Two networks of a user's that cannot teach block by block, as evaluation shows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.data import open_data

batches = open_data("digits", batch_size=8)
loss = nn.CrossEntropyLoss()


class InPlace(nn.Module):
    """Saves memory where nothing is recorded."""

    def forward(self, x):
        return functional.relu(x, inplace=not self.training)


class Counts(nn.Module):
    """Says how often it was asked."""

    def __init__(self):
        super().__init__()
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.asked += 1
        return x


def _space(name, layer):
    makers = [nn.Flatten, lambda: nn.Linear(64, 16), layer, lambda: nn.Linear(16, 10)]
    return npp.Space(name, [npp.Block([make]) for make in makers])


in_place, counts = _space("in-place", InPlace), _space("counts", Counts)
students = [nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), nn.Linear(16, 10)]
