"""Layers that a run does not keep as they are made are named before the start."""

from __future__ import annotations

from torch import nn

import naspipe as npp
from tests.inputs.test_space_check import STEM, checked, head


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
