"""Loading, evicting and tokens by hand: exactly these commands."""

from __future__ import annotations

from itertools import islice

import pytest

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.engine.predictor import Drawn, Forecast
from naspipe.engine.residency import FAR, LEAST_AHEAD, MOST_AHEAD
from tests.engine.device import WRITE
from tests.engine.told import Told, ahead, layer, layers, on_device, shown


def test_acquire_pins_the_leading_resident_layers():
    told = Told(30, [10, 10, 10]).put(0, 2)
    assert told.acquire(0, 1, 2) == 1 and told.acquire(1) == 0
    told.release(0)
    with pytest.raises(InvariantError, match="to be released"):
        told.release(2)
    assert told.acquire(0, 2) == 2


def test_loads_go_in_the_order_of_need_two_at_a_time():
    told = Told(100, [10] * 5)
    assert told.plan(3, 3, 1, 4, 0) == "load 3, load 1"
    assert told.plan(3, 3, 1, 4, 0) == ""
    told.loaded(3)
    assert told.plan(3, 3, 1, 4, 0) == "load 4"
    told.loaded(1, 4)
    assert told.plan(3, 3, 1, 4, 0) == "load 0"
    assert told.manager.ledger.used_bytes == 40 == told.manager.ledger.peak_bytes


def test_a_load_ahead_evicts_what_is_needed_later_or_not_at_all():
    told = Told(30, [10] * 5).put(0, 1, 2)
    assert told.plan(0, 3, 1, 2) == "evict 2, load 3", "the furthest next use"
    told.loaded(3)
    assert told.plan(0, 3, 4, 1) == "evict 1, load 4"
    told.loaded(4)
    told.use(0)
    assert told.plan(1) == "evict 3, load 1", "not mentioned, and not used for longest"


def test_a_load_ahead_evicts_nothing_that_is_needed_sooner():
    told = Told(30, [10] * 5).put(0, 1, 2)
    assert told.plan(2, 1, 0, 3, 0, 1) == ""
    assert told.plan(2, 1, 3, 0) == "evict 0, load 3"


def test_who_stood_still_loads_further_ahead_for_a_while():
    told = Told(10 * 200, [10] * 200, max_loads=200)
    numbers = iter(range(200))

    def loads(demanded=False):
        """A round, of which everything arrives and is used."""
        commands = told.plan(*islice(numbers, 20), demanded=demanded)
        found = [int(word) for word in commands.replace(",", "").split() if word.isdigit()]
        told.loaded(*found)
        told.use(*found)
        return len(found)

    assert loads() == LEAST_AHEAD
    assert loads(demanded=True) == MOST_AHEAD == loads()
    found = [loads() for _ in range(7)]
    assert found[:4] == [MOST_AHEAD] * 4 and found[5:] == [MOST_AHEAD - 1] * 2


def test_a_use_that_is_over_lets_the_next_layer_come_whatever_it_leaves():
    told = Told(30, [0, 0, 0, 0, 10])
    assert told.acquire(0, 1, 2, 3) == LEAST_AHEAD
    assert told.plan(0, 1, 2, 3, 4, token=1) == ""
    told.release(0)
    assert told.plan(1, 2, 3, 4, token=1) == "load 4", "no bytes became free"


def test_a_layer_without_room_is_not_overtaken():
    told = Told(30, [10, 10, 20, 5]).put(0, 1)
    assert told.plan(0, 1, 2, 3) == "", "layer 3 would fit, and layer 2 would wait for longer"
    assert told.plan(0, 1, 3, 2) == "load 3"


def test_the_forecast_is_drawn_no_further_than_it_matters():
    told = Told(20, [10] * 5).put(0, 1)

    def endless(*first):
        yield from layers(*first)
        raise AssertionError("drawn too far")

    assert shown(told.manager.plan(ahead(endless(0, 1)))) == "", "there is no room for any other"
    assert told.plan(0, 2, 1) == "evict 1, load 2"
    told = Told(100, [10] * 5)
    assert shown(told.manager.plan(ahead(endless(0, 1)))) == "load 0, load 1"
    assert shown(told.manager.plan(ahead(endless()))) == "", "two are under way"


def test_a_demand_evicts_even_what_was_just_loaded_ahead():
    told = Told(20, [10, 10, 20]).put(0, 1)
    assert told.plan(0, 1, 2) == ""
    assert told.demand(2, 0, 1) == "evict 1, evict 0, load 2"


def test_a_demand_waits_for_loads_pins_and_saves():
    told = Told(30, [10, 10, 10, 30]).put(0, 1)
    assert told.acquire(0) == 1
    told.use(1, kind=WRITE)
    assert told.plan(0, 2) == "load 2, save 1"
    told.release(0)
    assert told.demand(3) == ""
    told.loaded(2)
    assert told.demand(3) == "" and on_device(told) == [0, 1, 2], "nothing is evicted in vain"
    told.saved(1)
    assert told.demand(3) == "evict 1, evict 2, evict 0, load 3"


def test_a_demand_saves_the_best_victims_first():
    told = Told(40, [10, 10, 10, 10, 20])
    told.put(0, 1, 2, 3)
    told.use(0, 1, 2, 3, kind=WRITE)
    assert told.demand(4, 3, 0, 1) == "save 2, save 1"
    told.saved(2)
    assert told.demand(4, 3, 0, 1) == "save 0"
    told.saved(1)
    assert told.demand(4, 3, 0, 1) == "evict 2, evict 1, load 4, save 3"


def test_a_demand_that_can_never_be_met_is_an_error():
    told = Told(30, [25, 10], permanent={0}).put(0)
    with pytest.raises(InvariantError, match="expected it within 30 bytes, found 25 that cannot"):
        told.demand(1)


def test_without_prefetches_only_a_demand_loads_and_the_oldest_goes():
    told = Told(30, [10] * 5, prefetches=False)
    assert told.plan(0, 1) == ""
    for number in (0, 1, 2):
        assert told.demand(number, 3) == f"load {number}"
        told.loaded(number)
    told.use(0)
    assert told.demand(3, 1, 1) == "evict 1, load 3", "the forecast beyond the first is not used"


def test_a_known_forecast_is_not_drawn_again():
    told = Told(30, [10] * 5).put(0, 1)

    def unmade():
        raise AssertionError("looked ahead once more")

    def skips(token):
        assert shown(told.manager.plan(unmade, False, token)) == ""
        return True

    assert told.plan(0, 1, token=1) == "" and skips(1), "all in reach is there"
    told.use(1)
    assert skips(1), "and what is over makes no difference"
    assert told.plan(0, 1, 2, token=2) == "load 2", "another forecast does"
    told.loaded(2)
    assert told.acquire(0, 1, 2) == 3
    assert told.plan(0, 3, token=3) == "" and skips(3), "no room for layer 3"
    told.release(2)
    assert told.plan(0, 3, token=3) == "evict 2, load 3", "until something is released"
    told.loaded(3)
    assert told.plan(0, 3, token=3) == ""


def test_the_next_look_is_when_the_first_that_is_missing_comes_near():
    told, coming = Told(120, [10] * 14).put(*range(8)), [*range(12)]

    def unmade():
        raise AssertionError("looked ahead too early")

    assert told.plan(*coming, token=1) == ""
    for over in range(1, 8 - LEAST_AHEAD + 2):
        assert shown(told.manager.plan(unmade, False, 1)) == ""
        told.use(over - 1)
    assert told.plan(*coming[over:], token=1) == "load 8"
    told.loaded(8)
    assert told.plan(*coming[over:], token=1) == ""
    told.use(over)
    assert told.plan(*coming[over + 1 :], token=1) == "load 9"


def test_further_than_that_nobody_looks():
    told, coming = Told(200, [10] * 20).put(*range(20)), [*range(20)]
    assert told.plan(*coming, token=1) == ""
    looks = []
    for over in range(1, 12):
        told.use(over - 1)
        told.manager.plan(lambda over=over: looks.append(over) or ahead(layers(*coming[over:]))(),
                          False, 1)  # fmt: skip
    assert looks == [FAR + 1]


def test_what_nobody_needs_goes_before_the_forecast_is_drawn():
    told = Told(30, [10] * 4, max_loads=1).put(0, 1, 2)

    def drawn():
        yield [layer(3)]
        raise AssertionError("drawn further than to the layer that is loaded")

    needed = layers(0, 1, 3)
    found = told.manager.plan(lambda: Forecast((), Drawn(drawn()), needed))
    assert shown(found) == "evict 2, load 3"


def test_what_is_over_makes_room_under_the_same_token():
    told = Told(20, [10] * 3).put(0, 1)
    assert told.plan(0, 1, 2, token=1) == ""
    told.use(0)
    assert told.plan(1, 2, token=1) == "evict 0, load 2"


def test_a_token_outlives_neither_a_departure_nor_an_arrival():
    told = Told(30, [10] * 3).put(0)
    assert told.plan(0, token=1) == ""
    told.manager.forget(layer(0))
    assert told.plan(0, token=1) == "" == told.plan(0, token=1)
    told.manager.arrive(layer(0))
    assert told.plan(0, token=1) == "load 0"


def test_each_demand_of_a_run_is_looked_at():
    """A run goes on under the same token, and its next layer may not be there."""
    told = Told(30, [10] * 3, prefetches=False)
    assert told.plan(0, 1, demanded=True, token=7) == "load 0"
    assert told.plan(0, 1, demanded=True, token=7) == ""
    told.loaded(0)
    told.use(0)
    assert told.plan(1, demanded=True, token=7) == "load 1"


def test_one_load_at_a_time_at_least():
    with pytest.raises(ConfigError, match="max_loads: expected 1 or more loads at a time, found 0"):
        Told(10, [10], max_loads=0)
