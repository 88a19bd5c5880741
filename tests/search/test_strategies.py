"""Search strategies: seeded, within limits, and better than chance where there is something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.search.search_directory import Point, pareto_front
from naspipe.search.strategies import STRATEGIES, Evolution, make_strategy
from naspipe.streams.feedback import FeedbackLoop

COUNTS = (5, 7, 3, 9, 4, 6, 8, 5)


def search(strategy, score, steps=300, delay=8):
    loop = FeedbackLoop(strategy, delay, steps)
    stream = loop.start()
    y = 0
    while y < len(stream):
        stream += loop.take(y, score(stream[y]))
        y += 1
    return stream


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_seed_gives_a_stream(name):
    streams = [search(make_strategy(name, COUNTS, seed, lambda c: True), sum) for seed in (1, 1, 2)]
    assert streams[0] == streams[1] != streams[2]
    for choices in streams[0]:
        assert all(0 <= choice < count for choice, count in zip(choices, COUNTS, strict=True))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_subnet_keeps_the_limits(name):
    stream = search(make_strategy(name, COUNTS, 1, lambda c: sum(c) <= 15), sum)
    assert max(map(sum, stream)) == 15


@pytest.mark.parametrize("name", STRATEGIES)
def test_impossible_limits_are_said_to_be(name):
    strategy = make_strategy(name, COUNTS, 1, lambda c: False)
    with pytest.raises(ConfigError, match="no subnet within the limits"):
        strategy.propose(0)


@pytest.mark.parametrize("seed", range(5))
def test_evolution_finds_what_chance_does_not(seed):
    def score(choices):
        return sum(choice / count for choice, count in zip(choices, COUNTS, strict=True))

    best = {
        name: max(map(score, search(make_strategy(name, COUNTS, seed, lambda c: True), score)))
        for name in STRATEGIES
    }
    assert best["evolution"] > best["random"]


def test_the_oldest_dies():
    strategy = Evolution((100,) * 4, 1, population=3, tournament=50, mutation=0.0)
    for y in range(3):
        strategy.propose(y)
    first = strategy._proposed[0]
    strategy.observe(0, 10.0), strategy.observe(1, 0.0), strategy.observe(2, 0.0)
    near = sum(a == b for a, b in zip(strategy.propose(3), first, strict=True))
    assert near >= 2, "a child of the best"
    for y in range(4, 7):
        strategy.propose(y)
    for y in range(3, 6):
        strategy.observe(y, 0.0)
    assert first not in [scored.choices for scored in strategy._alive]


def test_bad_names_and_numbers():
    with pytest.raises(
        ConfigError, match="unknown strategy 'best': expected random, evolution, greedy"
    ):
        make_strategy("best", COUNTS, 1, lambda c: True)
    with pytest.raises(ConfigError, match="found 0 and 10"):
        Evolution(COUNTS, 1, population=0)


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(points)
def test_the_front_is_what_nothing_dominates(pairs):
    named = [(number, Point(*pair)) for number, pair in enumerate(pairs)]
    front = pareto_front(named)
    for _, point in named:
        dominated = any(
            other.score >= point.score and other.cost <= point.cost and other != point
            for _, other in named
        )
        assert (point in [p for _, p in front]) != dominated
    assert [p.cost for _, p in front] == sorted({p.cost for _, p in front})


def test_scores_that_are_no_numbers_are_left_out():
    assert pareto_front([("a", Point(float("nan"), 1)), ("b", Point(1, float("nan")))]) == []


def make(counts, seed):
    """A strategy of a user's own, for the command line: the first candidate everywhere."""

    class First:
        def propose(self, sequence_id):
            return [0] * len(counts)

        def observe(self, sequence_id, score):
            assert score <= 0

    return First()
