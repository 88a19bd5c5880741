"""The paper's costs of the spaces' layers: every candidate has a row, and copies take its time."""

from __future__ import annotations

import pytest

import search_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.ids import AccessKind, LayerId
from naspipe.config.space import Space
from search_spaces.table5 import (
    ROWS,
    table5_costs,
    table5_rows,
    table5_sizes,
    without_shared,
)
from tests.search_spaces import chain

INFO = {**chain.TEXT, **chain.IMAGES}


def paper(name: str) -> Space:
    return search_spaces.build(name, "paper", INFO)


@pytest.mark.parametrize("name", search_spaces.names())
def test_every_layer_costs_time_and_copies_take_the_tables(name: str) -> None:
    space = paper(name)
    costs = table5_costs(space)
    for block, rows in enumerate(table5_rows(space)):
        assert len(rows) == len(space.blocks[block].candidates)
        for candidate, row in enumerate(rows):
            layer = LayerId(0, block, candidate)
            assert costs.access_ns(layer, AccessKind.FORWARD) == round(row.forward_ms * 1e6) > 0
            assert costs.copy_ns(layer) == round(row.swap_ms * 1e6)
            assert costs.access_ns(layer, AccessKind.WRITE) == 0
    assert costs.message_ns(None) == 0


@pytest.mark.parametrize(
    ("name", "candidate", "row"),
    [
        ("nlp.c0", "conv 1x1, none", "conv 3x1"),
        ("nlp.c1", "separable 11x1, swish", "separable 7x1"),
        ("nlp.c2", "light 15x1, 16 heads, relu", "light 5x1"),
        ("nlp.c3", "attention, 4 heads, none", "attention 8"),
        ("nlp.c3", "glu, none", "conv 3x1"),
        ("cv.c1", "conv 1x7 then 7x1, none", "conv 3x3"),
        ("cv.c2", "separable 3x3, swish", "separable 3x3"),
        ("cv.c3", "separable 7x7, relu", "separable 5x5"),
        ("cv.c3", "dilated separable 5x5, relu", "dilated 3x3"),
    ],
)
def test_a_candidate_has_the_nearest_row(name: str, candidate: str, row: str) -> None:
    number = search_spaces.candidate_names(name).index(candidate)
    assert table5_rows(paper(name))[2][number] == ROWS[row]


def test_recompute_is_one_more_forward() -> None:
    space = paper("nlp.c3")
    layer = LayerId(0, 5, 1)  # conv 3x1
    kinds = AccessKind.BACKWARD
    assert table5_costs(space).access_ns(layer, kinds) == 15_000_000
    assert table5_costs(space, recompute=False).access_ns(layer, kinds) == 10_000_000


def test_sizes_are_what_12_gb_per_second_move() -> None:
    sizes = table5_sizes(paper("cv.c1"))
    conv = search_spaces.candidate_names("cv.c1").index("conv 3x3, relu")
    assert sizes.of(7, conv) == (55_200_000, 55_200_000, False)
    assert sizes.of(1, 0).state_bytes == 0, "identity has no parameters"


def test_without_shared_layers_blocks_and_choices_stay() -> None:
    space = paper("nlp.c2")
    bare = without_shared(space)
    assert len(bare) == 48 and bare.candidate_counts == space.candidate_counts
    assert table5_costs(bare).table.costs[0, 5] == table5_costs(space).table.costs[1, 5]


def test_other_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown search space 'mine'"):
        table5_rows(Space("mine", paper("cv.c3").blocks))
    with pytest.raises(ConfigError, match="block 0: expected 12 candidates"):
        table5_rows(Space("cv.c3", without_shared(paper("cv.c1")).blocks))
