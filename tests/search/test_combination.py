"""Paths of blocks put together within limits: what looking at every combination finds."""

from __future__ import annotations

import itertools
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.search.combination import Combination, RatedPath, combine

NAMES = ("flops", "params")


def path(choices, score, *costs):
    return RatedPath(choices, score, dict(zip(NAMES, costs, strict=False)))


TWO = [
    [path((0,), 0.5, 4.0), path((1,), 0.2, 9.0)],
    [path((0,), 0.6, 3.0), path((1,), 0.1, 8.0)],
]


@pytest.mark.parametrize(
    ("limit", "choices", "cost"),
    [(17, ((1,), (1,)), 17), (13, ((0,), (1,)), 12), (11, ((0,), (0,)), 7), (7, ((0,), (0,)), 7)],
)
def test_by_hand(limit, choices, cost):
    found = combine(TWO, {"flops": limit})
    assert (found.choices, found.costs) == (choices, {"flops": cost})
    assert combine(TWO) == combine(TWO, {"flops": 100}) == Combination(
        ((1,), (1,)), 0.2 + 0.1, {"flops": 17.0}
    )  # fmt: skip


def everything(blocks, limits):
    """The best of all combinations, in exact numbers; None where nothing fits."""
    found = []
    for paths in itertools.product(*blocks):
        sums = {name: sum(Fraction(p.costs[name]) for p in paths) for name in limits}
        if all(sums[name] <= Fraction(limits[name]) for name in limits):
            score = sum(Fraction(p.score) for p in paths)
            found.append((score, tuple(p.choices for p in paths)))
    return min(found)[1] if found else None


numbers = st.one_of(
    st.integers(0, 5).map(float), st.floats(0, 1, width=16), st.sampled_from([0.1, 0.2, 0.3])
)


@st.composite
def problems(draw):
    blocks = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 6))
        rows = draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=count, max_size=count))
        blocks.append([path((at // 3, at % 3), *row) for at, row in enumerate(rows)])
    names = draw(st.sampled_from([(), ("flops",), ("params",), NAMES]))
    return blocks, {name: draw(st.floats(0, 12, width=16)) for name in names}


@given(problems(), st.randoms(use_true_random=False))
def test_it_is_what_looking_at_all_of_them_finds(problem, shuffle):
    blocks, limits = problem
    expected = everything(blocks, limits)
    mixed = [shuffle.sample(paths, len(paths)) for paths in blocks]
    if expected is None:
        with pytest.raises(ConfigError, match="raise the limits"):
            combine(mixed, limits)
    else:
        assert combine(mixed, limits).choices == expected


def test_of_equal_scores_the_lowest_choices_whatever_they_cost():
    blocks = [[path((n,), 1.0, 9.0 - n, float(n)) for n in range(4)]] * 3
    assert combine(blocks, {"flops": 100}).choices == ((0,),) * 3
    assert combine(blocks, {"flops": 26}).choices == ((0,), (0,), (1,))
    first = [path((0,), 1.0, 1.0), path((1,), 0.0, 5.0)]
    other = [path((0,), 0.0, 6.0), path((1,), 1.0, 1.0)]
    assert combine([first, other], {"flops": 8}).choices == ((0,), (0,))  # (1,), (1,) costs less


def test_a_sum_is_not_rounded():
    blocks = [[path((0,), 0.0, 0.1), path((1,), 1.0, 0.0)], [path((0,), 0.0, 0.2)]]
    assert combine(blocks, {"flops": 0.3}).choices == ((1,), (0,))  # 0.1 + 0.2 is above 0.3
    tiny = [[path((0,), 1.0, 1.0), path((1,), 1.0 - 2**-53, 1.0)], [path((0,), 2.0**60, 1.0)]]
    assert combine(tiny).choices == ((1,), (0,))


def test_six_blocks_of_dnas_size_take_seconds():
    draw, blocks = random.Random(1), []
    for block in range(6):
        sizes = [(draw.uniform(1, 3), draw.uniform(0.5, 2)) for _ in range(6)]
        paths = []
        for choices in itertools.product(range(6), repeat=4):
            flops = sum(sizes[c][0] * (1 + 0.3 * n) for n, c in enumerate(choices))
            params = sum(sizes[c][1] * (1 + 0.5 * n) for n, c in enumerate(choices))
            score = 1 - 0.02 * (flops + params) + draw.gauss(0, 0.02)
            paths.append(path(choices, score, flops * (block + 1), params * 2**block))
        blocks.append(paths)
    limits = {
        name: sum(
            (min(p.costs[name] for p in paths) + max(p.costs[name] for p in paths)) / 2
            for paths in blocks
        )
        for name in NAMES
    }
    before = time.monotonic()
    found = combine(blocks, limits)
    assert time.monotonic() - before < 60  # 2 seconds on a machine that is idle
    assert all(found.costs[name] <= limits[name] for name in NAMES)
    for number, paths in enumerate(blocks):  # no other path of one block would be better
        own = next(p for p in paths if p.choices == found.choices[number])
        for other in paths:
            fits = all(
                found.costs[name] - own.costs[name] + other.costs[name] <= limits[name] - 1e-6
                for name in NAMES
            )
            assert not fits or other.score >= own.score


def test_what_has_no_score_or_cost_is_left_out():
    blocks = [[path((0,), float("nan"), 1.0), path((1,), 3.0, float("nan")), path((2,), 4.0, 2.0)]]
    assert combine(blocks).choices == ((1,),)
    assert combine(blocks, {"flops": 9}).choices == ((2,),)
    with pytest.raises(ConfigError, match="paths of block 0 with a score and params, found none"):
        combine(blocks, {"params": 9})


def test_the_cheapest_is_named_where_nothing_fits():
    with pytest.raises(ConfigError, match=r"within 6 flops, found the cheapest at 7 flops \(0;0\)"):
        combine(TWO, {"flops": 6})
    blocks = [[path((0,), 1.0, 1.0, 9.0), path((1,), 1.0, 9.0, 1.0)]]
    with pytest.raises(ConfigError, match=r"1 flops \(0\) and 1 params \(1\), but not together"):
        combine(blocks, {"flops": 3, "params": 3})
