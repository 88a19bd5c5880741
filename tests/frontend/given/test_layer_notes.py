"""Layers whose forward counts in an attribute are named before the start."""

from __future__ import annotations

from torch import nn

import naspipe as npp
from tests.frontend.given.test_space_check import STEM, checked, head


class Counts(nn.Linear):
    """Weighs by how often it was called; or keeps a size of its first call."""

    def __init__(self, counts):
        super().__init__(8, 8)
        self.counts, self.calls, self.size = counts, 0, None

    def forward(self, x):
        self.size = len(x)
        self.calls += self.counts
        return super().forward(x) / (1 + self.calls)


def test_a_layer_that_counts_in_an_attribute_is_named():
    notes = checked(STEM, npp.Block([nn.Identity, lambda: Counts(1)]), head())
    assert [each.partition(", which")[0] for each in notes] == [
        "layer 0.1: its forward changes its attribute calls each time"
    ]
    assert checked(STEM, npp.Block([nn.Identity, lambda: Counts(0)]), head()) == []


def test_parts_in_evaluation_mode_are_named():
    notes = checked(STEM, npp.Block([lambda: nn.Sequential(nn.Identity().eval())]), head())
    assert [each.partition(", and")[0] for each in notes] == [
        "layer 0.0: its factory leaves its Identity (0) in evaluation mode"
    ]
