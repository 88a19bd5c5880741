"""Layers whose forward keeps more than a run does are named before the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from tests.frontend.given.test_space_check import STEM, checked, head


class Logs(nn.Linear):
    """Keeps the number of its calls, what it saw, a mean, or a size of its first call."""

    def __init__(self, *kept):
        super().__init__(8, 8)
        self.kept, self.calls, self.seen, self.mean, self.size = kept, 0, [], torch.zeros(()), None

    def forward(self, x):
        if "calls" in self.kept:
            self.calls += 1
        if "seen" in self.kept:
            self.seen.append(len(x))
        if "mean" in self.kept:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().abs().mean()
        self.size, self.last = len(x), x.detach()
        return super().forward(x)


@pytest.mark.parametrize("kept", ["calls", "seen", "mean"])
def test_a_layer_that_changes_an_attribute_is_named(kept):
    notes = checked(STEM, npp.Block([nn.Identity, lambda: Logs(kept)]), head())
    assert [each.partition(", which")[0] for each in notes] == [
        f"layer 0.1: its forward changes its attribute {kept} each time"
    ]


def test_what_is_the_same_for_the_same_input_is_no_memory():
    assert checked(STEM, npp.Block([nn.Identity, Logs]), head()) == []


def test_parts_in_evaluation_mode_are_named():
    notes = checked(STEM, npp.Block([lambda: nn.Sequential(nn.Identity().eval())]), head())
    assert [each.partition(", and")[0] for each in notes] == [
        "layer 0.0: its factory leaves its Identity (0) in evaluation mode"
    ]


def test_blocks_made_in_a_loop_that_read_its_variable_late_are_named():
    blocks = []
    for rate in (0.0, 0.1, 0.2):
        blocks.append(
            npp.Block([lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate)), nn.Identity])  # noqa: B023
        )
    assert checked(STEM, *blocks, head()) == [
        "block 0: its factories read rate, which was 0.0 when the block was made and is 0.2 now "
        "(and so in 1 more block); a factory made in a loop reads the loop's variable when it is "
        "called, so write lambda rate=rate: ..."
    ]
