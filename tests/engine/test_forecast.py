"""The forecast: distinct layers in order, drawn no further than asked."""

from __future__ import annotations

from itertools import count, islice

from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import LayerId
from naspipe.engine.predictor import Drawn, Forecast

A, B, C, D = (LayerId(0, 0, candidate) for candidate in range(4))

ALL = {A, B, C, D}

LAYERS = st.lists(st.sampled_from([A, B, C, D]))


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


def alone(layers):
    """Each in a list of its own."""
    return ([layer] for layer in layers)


def test_lists_are_drawn_whole():
    told = Told([[A, B], [B, C], [D]])
    drawn = Drawn(told)
    walk = iter(Forecast([B], drawn, ALL))
    assert (next(walk), next(walk), told.taken) == (B, A, 1)
    assert (next(walk), told.taken) == (C, 2)


def test_nothing_is_drawn_before_it_is_asked_for():
    told = Told([A, A, B, C])
    walk = iter(Forecast((), Drawn(alone(told)), ALL))
    assert told.taken == 0
    assert (next(walk), told.taken) == (A, 1)
    assert (next(walk), told.taken) == (B, 3)


def test_looking_further_ahead_keeps_the_walk():
    told = Told([A, B, A, C, D])
    ahead = Forecast((), Drawn(alone(told)), ALL)
    walk = iter(ahead)
    assert next(walk) == A
    assert (ahead.next_uses([A], 9), told.taken) == ({A: 0}, 1)
    assert (ahead.next_uses([C, A], 9), told.taken) == ({A: 0, C: 2}, 5)
    assert list(walk) == [B, C, D]


def test_forecasts_share_what_follows():
    told = Told([A, B, C, D])
    then = Drawn(alone(told))
    assert Forecast([D, B], then, ALL).next_uses([C], 9) == {C: 4}
    assert told.taken == 4
    assert Forecast([B], then, ALL).next_uses([A, B, D], 9) == {A: 1, B: 0, D: 4}
    assert list(Forecast([B, B], then, ALL)) == [B, A, C, D]


def test_whether_a_layer_may_be_used_is_known_without_drawing():
    told = Told([A])
    ahead = Forecast([C], Drawn(alone(told)), {A, B})
    assert [ahead.may_use(layer) for layer in (A, B, C, D)] == [True, True, True, False]
    assert told.taken == 0


def test_what_is_beyond_reach_is_neither_drawn_nor_named():
    told = Told(LayerId(0, 0, number) for number in count())
    ahead = Forecast((), Drawn(alone(told)), ALL)
    assert ahead.next_uses([C, D], 3) == {C: 2}
    assert told.taken == 3
    assert list(islice(ahead, 4)) == [A, B, C, D]
    assert ahead.next_uses([D], 3) == {}, "drawn by now, and still beyond"
    assert Forecast([A, B, C], Drawn(), ALL).next_uses([A, B, C], 2) == {A: 0, B: 1}


@given(LAYERS, LAYERS, st.lists(st.sampled_from([A, B, C, D]), unique=True), st.integers(1, 9))
def test_next_uses_keep_the_order_of_the_walk(first, then, wanted, reach):
    ahead = Forecast(first, Drawn(alone(then)), ALL)
    uses = ahead.next_uses(wanted, reach)
    walk = list(ahead)
    assert walk == list(dict.fromkeys(first + then))
    assert sorted(uses, key=uses.__getitem__) == [layer for layer in walk if layer in uses]
    assert {layer for layer in walk[:reach] if layer in wanted and layer in first} <= uses.keys()
    assert all(use < reach for use in uses.values())
