"""A strategy object is asked and told once, however often its stream begins anew."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.streams.feedback import FeedbackLoop, KeptStrategy


class Counting:
    """Proposes how often it was asked, and remembers all that it was told."""

    def __init__(self):
        self.asked, self.told, self.ended = 0, [], 0

    def propose(self, sequence_id):
        if sequence_id > 2 and not self.told:
            return None
        self.asked += 1
        return (self.asked,)

    def observe(self, sequence_id, score):
        self.told.append((sequence_id, score))

    def finish(self):
        self.ended += 1


def live(kept, scores, delay=3, subnets=8):
    """The subnets of one life, which ends after these scores."""
    loop = FeedbackLoop(kept.begin(), delay, subnets)
    found = loop.start()
    for number, score in enumerate(scores):
        found += loop.take(number, score)
    if loop.is_finished:
        kept.finish()
    return found


def test_a_stream_begins_anew_and_goes_on():
    strategy = Counting()
    kept = KeptStrategy(strategy, "Counting")
    first = live(kept, [0.5, float("nan"), 0.25])
    again = live(kept, [0.5, float("nan")])
    assert again == first[: len(again)]
    scores = [0.5, float("nan"), 0.25, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert live(kept, scores) == [(number,) for number in range(1, 9)]
    assert strategy.asked == 8 and strategy.ended == 1
    assert [repr(score) for _, score in strategy.told] == list(map(repr, scores))


def test_another_stream_is_refused():
    kept = KeptStrategy(Counting(), "Counting")
    live(kept, [0.5])
    with pytest.raises(ConfigError, match=r"told 0\.5 of subnet 0 before and is told 0\.75 of"):
        live(kept, [0.75])
