"""Layers that the tests of what is checked before a run are made of, and their data."""

from __future__ import annotations

import torch
from torch import nn

import naspipe as npp

BATCH = {"input": torch.ones(4, 3, 8, 8), "target": torch.arange(4)}


def data(seed, number):
    return BATCH


def conv(before, after):
    return lambda: nn.Conv2d(before, after, 3, padding=1)


def head(width=8):
    return npp.Shared("head", lambda: nn.Sequential(Pool(), nn.Linear(width, 10)))


class Pool(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


STEM = npp.Shared("stem", conv(3, 8), rule=npp.Lag(2))
