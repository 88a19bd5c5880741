"""GreedyNAS's pool: who comes in, who leaves, how often it is drawn from."""

from __future__ import annotations

import math
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.search.strategies import GreedyPool
from naspipe.streams.feedback import FeedbackLoop

COUNTS = (5, 7, 3, 9, 4, 6)


def told(pool, scores, first=0):
    """Propose and score one subnet after the other; returns the subnets."""
    found = []
    for y, score in enumerate(scores, first):
        found.append(pool.propose(y))
        pool.observe(y, score)
    return found


def test_the_best_of_each_group_come_in():
    pool = GreedyPool(COUNTS, 1, group=4, keep=2, greed=0.0)
    found = told(pool, [1.0, 4.0, 2.0])
    assert pool.pool == []
    found += told(pool, [3.0, -7.0, -9.0, -8.0, -10.0], first=3)
    assert pool.pool == [(found[1], 4.0), (found[3], 3.0), (found[4], -7.0), (found[6], -8.0)]


def test_the_worst_leaves_a_full_pool_and_of_equal_ones_the_oldest():
    pool = GreedyPool(COUNTS, 1, size=3, group=2, keep=1, greed=0.0)
    found = told(pool, [5.0, 0.0, 4.0, 0.0, 4.0, 0.0])
    assert [scored.choices for scored in pool.pool] == [found[0], found[4], found[2]]
    found += told(pool, [4.0, 1.0], first=6)
    assert [scored.choices for scored in pool.pool] == [found[0], found[6], found[4]]
    found += told(pool, [3.0, 2.0], first=8)
    assert [scored.choices for scored in pool.pool] == [found[0], found[6], found[4]]


def test_a_path_has_its_newest_score_once():
    pool = GreedyPool((1, 1), 1, size=3, group=2, keep=2)
    told(pool, [5.0, 4.0, 1.0, 2.0])
    assert pool.pool == [((0, 0), 2.0)]


def test_a_path_that_comes_in_again_is_the_newest():
    only = []
    pool = GreedyPool((2,), 1, lambda choices: choices == only[-1], group=1, keep=1, greed=0.0)
    for y, path in enumerate([(0,), (1,), (0,)]):
        only.append(path)
        told(pool, [1.0], first=y)
    assert [scored.choices for scored in pool.pool] == [(0,), (1,)]


def test_a_score_that_is_no_number_is_the_worst():
    pool = GreedyPool(COUNTS, 1, group=3, keep=1, greed=0.0)
    found = told(pool, [math.nan, -1e30, math.nan])
    assert pool.pool == [(found[1], -1e30)]


def test_greed_grows():
    """The share of draws that are in the pool already, in two halves and at the end."""
    pool = GreedyPool((1000,) * 4, 3, group=10, keep=5, greed=0.8, growth=1000)
    known = []
    for y in range(2000):
        choices = pool.propose(y)
        known.append(choices in {scored.choices for scored in pool.pool})
        pool.observe(y, -float(y))
    first, second, rest = known[:500], known[500:1000], known[1000:]
    assert mean(first) == pytest.approx(0.2, abs=0.06)
    assert mean(second) == pytest.approx(0.6, abs=0.06)
    assert mean(rest) == pytest.approx(0.8, abs=0.04)


def test_without_greed_it_draws_as_chance_does():
    found = told(GreedyPool((4,), 1, greed=0.0), range(2000))
    shares = [mean(choice == (candidate,) for choice in found) for candidate in range(4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.04)


def test_good_paths_are_trained_more_often_although_losses_fall():
    """Candidate 0 of each block is the best; every loss falls as training goes on."""
    counts = (4,) * 5
    loop = FeedbackLoop(GreedyPool(counts, 1, size=50, growth=500), delay=16, num_subnets=1500)
    stream = loop.start()
    for y in range(1500):
        stream += loop.take(y, -(sum(stream[y]) + 0.01 * (1500 - y)))
    early, late = stream[:200], stream[-500:]
    assert mean(map(sum, late)) < 0.75 * mean(map(sum, early))


@given(
    st.lists(st.floats(-5, 5), max_size=60), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9)
)
def test_the_pool_is_bounded_sorted_and_proposes_what_is_allowed(scores, size, keep, seed):
    pool = GreedyPool(COUNTS, seed, lambda c: sum(c) > 5, size=size, group=4, keep=keep, growth=9)
    found = told(pool, scores)
    assert len(pool.pool) <= size
    assert pool.pool == sorted(pool.pool, key=lambda scored: -scored.score)
    assert all(sum(choices) > 5 for choices in found)
    assert {scored.choices for scored in pool.pool} <= set(found)


@pytest.mark.parametrize(
    "wrong", [{"keep": 0}, {"keep": 11}, {"size": 0}, {"growth": 0}, {"greed": 1.1}, {"greed": -1}]
)
def test_numbers_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match="greedy: expected 1 <= keep <= group, size and growth"):
        GreedyPool(COUNTS, 1, **wrong)
