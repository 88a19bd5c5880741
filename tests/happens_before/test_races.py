"""No order of events leaves a race, and one that is missing shows; more: scripts/check_races.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.happens_before.mutants import MUTANTS
from tests.happens_before.orders import drawn_orders, run_order
from tests.happens_before.searching import MUTANT_CASES, search

ACTIONS = {
    "the device goes on", "writing thread", "take finished",
    "deliver", "receive", "input", "output", "layer comes back", "hand over",
    "copy to the other stage", "load", "forward", "backward", "write", "save", "evict", "capture",
    "finish cut", "report checkpoints", "wait for the device",
}  # fmt: skip


@settings(max_examples=150)
@given(drawn_orders)
def test_no_order_of_events_leaves_a_race(order):
    run_order(order)


def test_everything_happens():
    verdict = search(40)
    assert verdict.finding == ""
    assert verdict.done.keys() - {"accesses"} == ACTIONS
    assert min(verdict.done.values()) > 20


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_order_is_found(name):
    with MUTANTS[name]():
        assert search(MUTANT_CASES).finding
    assert search(1).finding == "", "the mutant is gone"
