"""Settings of one name are one decision, which reaches every layer that has them."""

from __future__ import annotations

from itertools import product

import pytest

from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.streams.passes import extremes
from naspipe.streams.samplers import draw_subnets

WIDE = {"width": [16, 4, 8]}


def chain():
    return Space(
        "mine",
        [
            Shared("stem", list), Elastic("one", list, WIDE), Block([list, dict, set]),
            Elastic("two", list, {"act": ["relu", "gelu"], **WIDE}), Elastic("three", list, WIDE),
        ],
    )  # fmt: skip


def test_one_value_reaches_all_layers():
    decisions = chain().decisions
    assert decisions.values == {
        "width": (16, 4, 8), "1": (0, 1, 2), "act": ("relu", "gelu"),
    }  # fmt: skip
    assert decisions.counts == (3, 3, 2)
    assert decisions.choices((2, 1, 1)) == (2, 1, 5, 2)
    for drawn in product(range(3), range(3), range(2)):
        assert decisions.drawn(decisions.choices(drawn)) == drawn
    assert decisions.choices_of({"width": 8, "1": 1, "act": "gelu"}) == (2, 1, 5, 2)


def test_samplers_draw_decisions():
    space = chain()
    for one, _, two, three in draw_subnets("uniform", space, 3, 20):
        assert one == three == two % 3
    assert len(set(draw_subnets("fair", space, 3, 6))) == 6


def test_extremes_go_by_value_by_place_and_by_size():
    """A width by its value, an activation by its place, a candidate by its parameters."""
    space = chain()
    sizes = {0: 5, 1: 9, 2: 5}
    largest, smallest = extremes(space, lambda position, candidate: sizes[candidate])
    assert largest == space.decisions.choices_of({"width": 16, "1": 1, "act": "gelu"})
    assert smallest == space.decisions.choices_of({"width": 4, "1": 0, "act": "relu"})


def test_without_an_order_there_is_no_sandwich():
    space = Space("alike", [Block([list, dict]), Block([list, dict])])
    with pytest.raises(ConfigError, match=r"all of space alike have as many parameters; use"):
        extremes(space, lambda position, candidate: 3)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"width": 4, "1": 0}, "setting act: expected one of 'relu', 'gelu', found nothing"),
        ({"width": 5, "1": 0, "act": "relu"}, "setting width: expected one of 16, 4, 8, found 5"),
        ({"width": 4, "1": 0, "act": "relu", "depth": 3}, "has no setting 'depth': expected width"),
    ],
)
def test_settings_that_no_layer_has(sample, said):
    with pytest.raises(ConfigError, match=said):
        chain().decisions.choices_of(sample)


def test_layers_that_contradict_each_other_are_no_subnet():
    with pytest.raises(ConfigError, match=r"layer three has the setting width 4, one before 8"):
        chain().decisions.drawn((2, 1, 5, 1))


def test_a_space_is_cut_where_no_setting_is_on_both_sides():
    with pytest.raises(ConfigError, match=r"no setting is on both sides, found width in layer"):
        chain().cut([2])
    other = Space("s", [Elastic("one", list, WIDE), Elastic("two", list, {"k": [1, 3]})])
    assert [part.decisions.counts for part in other.cut([1])] == [(3,), (2,)]
