"""Settings that were not measured cost what the measured ones of their layer lead to."""

from __future__ import annotations

import pytest

from naspipe.config.blocks import Block, Elastic
from naspipe.config.space import Space
from naspipe.plan.costs import LayerCost
from naspipe.profiling.profiler import with_settings_between

SETTINGS = {"width": [64, 128, 256], "kernel": [1, 3, 5], "act": ["relu", "gelu"]}


def space():
    return Space("mine", [Block([list, dict]), Elastic("conv", list, SETTINGS)])


def cost(option, block):
    setting = block.setting(option)
    work = setting["width"] * setting["kernel"] ** 2
    return LayerCost(1000 * work, 2000 * work, 77, 5, 8 * setting["width"])


def test_a_product_of_settings_is_found():
    made = space()
    block = made.blocks[1]
    measured = {(1, option): cost(option, block) for option in (0, 3, 4, 8, 9, 14, 17)}
    found = with_settings_between(made, {(0, 0): LayerCost(1, 1, 1), **measured})
    assert set(found) == {(0, 0), *((1, option) for option in range(18))}
    for option in range(18):
        expected, got = cost(option, block), found[1, option]
        assert got.forward_ns == pytest.approx(expected.forward_ns, rel=0.01)
        assert got.backward_ns == pytest.approx(expected.backward_ns, rel=0.01)
        assert (got.write_ns, got.make_ns) == (77, 5)
        assert got.activation_bytes == pytest.approx(expected.activation_bytes, rel=0.01)


def test_nothing_lies_outside_of_what_was_measured():
    made = space()
    measured = {(1, 0): LayerCost(100, 200, 3), (1, 1): LayerCost(400, 800, 3)}
    found = with_settings_between(made, measured)
    assert all(100 <= each.forward_ns <= 400 and each.write_ns == 3 for each in found.values())
    assert with_settings_between(made, {(1, 0): LayerCost(1, 1, 1)}) == {(1, 0): LayerCost(1, 1, 1)}
