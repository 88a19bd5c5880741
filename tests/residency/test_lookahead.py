"""The lookahead: distinct layers in order, drawn no further than asked."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from naspipe.core.ids import LayerId
from naspipe.residency.lookahead import Lookahead

A, B, C, D = (LayerId(0, 0, candidate) for candidate in range(4))


class Told:
    """An iterator that counts what was taken from it."""

    def __init__(self, layers):
        self.layers, self.taken = iter(layers), 0

    def __iter__(self):
        return self

    def __next__(self):
        layer = next(self.layers)
        self.taken += 1
        return layer


def test_nothing_is_drawn_before_it_is_asked_for():
    told = Told([A, A, B, C])
    walk = iter(Lookahead(told, 9))
    assert told.taken == 0
    assert (next(walk), told.taken) == (A, 1)
    assert (next(walk), told.taken) == (B, 3)


def test_looking_further_ahead_keeps_the_walk():
    told = Told([A, B, A, C, D])
    ahead = Lookahead(told, 9)
    walk = iter(ahead)
    assert next(walk) == A
    ahead.find({A})
    assert told.taken == 1
    ahead.find({A, C})
    assert ahead.places == {A: 0, B: 1, C: 2, D: 3} and told.taken == 5
    assert list(walk) == [B, C, D]


def test_reach_counts_entries():
    ahead = Lookahead((LayerId(0, 0, number % 2) for number in count()), 5)
    assert list(ahead) == [A, B]
    ahead = Lookahead([A, B, C, D], 3)
    ahead.find({D})
    assert list(ahead) == [A, B, C]


@given(st.lists(st.sampled_from([A, B, C, D])), st.sets(st.sampled_from([A, B, C, D])))
def test_places_are_those_of_the_distinct_layers(forecast, wanted):
    distinct = list(dict.fromkeys(forecast))
    ahead = Lookahead(forecast, 99)
    ahead.find(wanted)
    assert wanted & set(distinct) <= set(ahead.places)
    assert list(ahead) == distinct
    assert ahead.places == {layer: place for place, layer in enumerate(distinct)}
