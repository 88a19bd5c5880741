"""Saving, permanent layers, and layers that leave and arrive, by hand."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError
from tests.engine.device import BACKWARD, FORWARD, WRITE, Size
from tests.engine.told import Told, layer, shown


def test_dirty_layers_are_saved_soon_the_oldest_first():
    told = Told(100, [10] * 4).put(0, 1, 2, 3)
    told.use(2, 0, kind=WRITE)
    assert told.acquire(1, 3) == 2
    told.release(1, kind=WRITE)
    assert told.plan() == "save 2, save 0" and told.plan() == ""
    told.release(3, kind=WRITE)
    told.saved(2)
    assert told.plan() == "save 1"
    told.saved(0, 1)
    assert told.plan() == "save 3"
    assert told.manager.needs_save(layer(3)) and not told.manager.needs_save(layer(1))


def test_what_another_stage_waits_for_is_saved_first():
    told = Told(100, [10] * 4).put(0, 1, 2, 3)
    told.use(0, 1, 2, 3, kind=WRITE)
    told.manager.save_first(layer(3))
    assert told.plan() == "save 3, save 0"
    told.saved(3, 0)
    told.use(3, kind=WRITE)
    assert told.plan() == "save 1, save 2", "once"
    told.manager.save_first(layer(2))
    told.use(2, kind=WRITE)
    told.saved(1, 2)
    assert told.plan() == "save 2, save 3", "until host memory is whole"


def test_save_first_means_the_save_that_is_owed():
    told = Told(100, [10] * 3).put(0, 1, 2)
    told.manager.save_first(layer(2))
    told.use(0, 1, 2, kind=WRITE)
    assert told.plan() == "save 0, save 1", "layer 2 was clean when it was asked for"


def test_a_layer_written_during_its_save_is_saved_again():
    told = Told(100, [10]).put(0)
    told.use(0, kind=WRITE)
    assert told.plan() == "save 0"
    told.use(0, kind=WRITE)
    assert told.plan() == ""
    told.saved(0)
    assert told.manager.needs_save(layer(0)) and told.plan() == "save 0"
    told.saved(0)
    assert not told.manager.needs_save(layer(0)) and told.plan() == ""


def test_permanent_layers_stay_and_are_not_saved():
    told = Told(20, [10, 10, 10], permanent={0}).put(0, 1)
    told.use(0, kind=WRITE)
    assert told.plan() == "" and told.demand(2) == "evict 1, load 2"


def test_a_layer_of_no_bytes_needs_no_load():
    told = Told(10, [0, 10])
    assert told.plan(0, 1) == "load 1" and told.acquire(0, 1) == 1
    told.release(0, kind=WRITE)
    assert told.plan(0) == "" and not told.manager.needs_save(layer(0))
    assert shown(told.manager.forget(layer(0))) == ""


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD, WRITE])
@pytest.mark.parametrize("writes_forward", [False, True])
def test_what_makes_a_layer_dirty(kind, writes_forward):
    told = Told(10, [Size(10, writes_forward)]).put(0)
    told.use(0, kind=kind)
    assert told.manager.needs_save(layer(0)) == (kind is WRITE or writes_forward)


def test_a_layer_that_leaves_is_evicted_and_not_loaded_until_it_is_back():
    told = Told(30, [10, 10, 10]).put(0)
    told.use(0, kind=WRITE)
    assert told.plan() == "save 0"
    with pytest.raises(InvariantError, match=r"to be evicted: .* being saved"):
        told.manager.forget(layer(0))
    told.saved(0)
    assert shown(told.manager.forget(layer(0))) == "evict 0"
    assert told.manager.ledger.used_bytes == 0 and told.acquire(0) == 0
    assert told.plan(0, 1) == "load 1", "it is passed over"
    with pytest.raises(InvariantError, match=r"0:0\.0 to be loaded: it lives on another stage"):
        told.demand(0)
    assert shown(told.manager.arrive(layer(0))) == ""
    assert told.demand(0) == "load 0"


@pytest.mark.parametrize("returns", [False, True])
def test_a_load_that_is_overtaken_goes_when_it_lands(returns):
    told = Told(30, [10, 10, 10])
    assert told.plan(0) == "load 0"
    assert shown(told.manager.forget(layer(0))) == ""
    if returns:
        assert shown(told.manager.arrive(layer(0))) == "" and told.demand(0) == ""
    told.loaded(0)
    assert told.acquire(0) == 0, "what landed is out of date"
    assert told.plan(0) == ("evict 0, load 0" if returns else "evict 0")
    told.plan(1)
    told.loaded(*([0] if returns else []), 1)
    assert told.acquire(*([0] if returns else []), 1) == 1 + returns


def test_what_arrives_replaces_an_older_copy():
    told = Told(30, [10]).put(0)
    assert shown(told.manager.arrive(layer(0))) == "evict 0"
    assert told.plan(0, token=1) == "load 0"


def test_a_layer_in_use_cannot_leave_and_a_permanent_one_stays():
    told = Told(30, [10, 10], permanent={1}).put(0, 1)
    assert told.acquire(0) == 1
    with pytest.raises(InvariantError, match="to be evicted"):
        told.manager.forget(layer(0))
    assert told.manager.forget(layer(1)) == told.manager.arrive(layer(1)) == ()
    assert told.manager.ledger.is_resident(layer(1)) and not told.manager.needs_save(layer(1))
