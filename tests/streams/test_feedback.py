"""The feedback loop: what a strategy sees never depends on the order in which scores come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.streams.feedback import FeedbackLoop


class Recorder:
    """Proposes what depends on everything it has seen."""

    def __init__(self):
        self.seen = []

    def propose(self, sequence_id):
        self.seen.append(("propose", sequence_id))
        return [len(self.seen) % 7, sum(score for kind, score in self.scores) % 5]

    @property
    def scores(self):
        return [entry for entry in self.seen if entry[0] != "propose"]

    def observe(self, sequence_id, score):
        self.seen.append((sequence_id, score))


def run(delay, steps, seed):
    """Scores come in an order of the seed's; a subnet's score is a function of its choices."""
    draw, strategy = random.Random(seed), Recorder()
    loop = FeedbackLoop(strategy, delay, steps)
    stream = loop.start()
    open_now = list(range(len(stream)))
    while open_now:
        y = open_now.pop(draw.randrange(len(open_now)))
        new = loop.take(y, sum(stream[y]) + y)
        open_now += range(len(stream), len(stream) + len(new))
        stream += new
    assert loop.is_finished
    return stream, strategy.seen


@given(st.integers(0, 6), st.integers(1, 30), st.integers(0, 2**32))
def test_the_order_of_scores_changes_nothing(delay, steps, seed):
    stream, seen = run(delay, steps, seed)
    assert (stream, seen) == run(delay, steps, seed + 1)
    assert len(stream) == steps
    assert [y for kind, y in seen if kind == "propose"] == list(range(steps))
    for y in range(steps):
        before = seen[: seen.index(("propose", y))]
        observed = [entry[0] for entry in before if entry[0] != "propose"]
        assert observed == list(range(max(0, y - delay)))


def test_a_delay_of_none_is_one_subnet_at_a_time():
    loop = FeedbackLoop(Recorder(), 0, 3)
    assert len(loop.start()) == 1
    assert len(loop.take(0, 1.0)) == 1 and not loop.is_finished


@pytest.mark.parametrize("sequence_id", [0, 3, -1])
def test_scores_that_nobody_waits_for(sequence_id):
    loop = FeedbackLoop(Recorder(), 1, 5)
    loop.start()
    loop.take(0, 1.0)
    with pytest.raises(InvariantError, match=f"score of subnet {sequence_id}: expected one of 1"):
        loop.take(sequence_id, 1.0)


def test_a_score_told_twice():
    loop = FeedbackLoop(Recorder(), 2, 5)
    loop.start()
    loop.take(1, 1.0)
    with pytest.raises(InvariantError, match="not told yet"):
        loop.take(1, 1.0)


def test_a_negative_delay():
    with pytest.raises(ConfigError, match="feedback delay: expected 0 or more subnets, found -1"):
        FeedbackLoop(Recorder(), -1, 5)
