"""What memory admits: by hand for one stage, and what must hold for any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from scripts.paper.footprint import (
    SYSTEMS,
    Footprint,
    FootprintTable,
    System,
    largest_batch,
    most_in_flight,
    stage_loads,
)

ROWS = (Footprint(100, 80, 10.0, 2.0, 30.0), Footprint(300, 240, 10.0, 2.0, 50.0))
TABLE = FootprintTable((0, 0, 0, 0), {0: ROWS})
NASPIPE, VPIPE, GPIPE, PIPEDREAM = SYSTEMS
SIZES = range(1, 30)


def test_one_stage_by_hand():
    """Two blocks of two candidates each; a subnet's layer has 200 bytes on average."""
    swaps, holds, stashes = (
        stage_loads(TABLE, system, 2, in_flight=3)[0] for system in (NASPIPE, GPIPE, PIPEDREAM)
    )
    assert swaps.fixed_bytes == 3 * 2 * 200 + 240
    assert holds.fixed_bytes == 2 * 400 + 240
    assert stashes.fixed_bytes == 2 * 400 + 240 + 1 * 2 * 160, "two stages: two under way"
    assert swaps.kept_bytes == holds.kept_bytes == 2 + 2 * 10
    assert stashes.kept_bytes == 2 + 2 * (10 + 40)
    assert swaps.working_bytes == 10 + 2 * 50
    assert swaps.needed_bytes(7, 3) == 1440 + 7 * (3 * 22 + 110)


def test_the_largest_batch_is_where_it_ends():
    limits = {"num_stages": 2, "in_flight": 3, "sizes": SIZES}
    assert largest_batch(TABLE, NASPIPE, budget_bytes=1440 + 7 * 176, **limits) == 7
    assert largest_batch(TABLE, NASPIPE, budget_bytes=1440 + 7 * 176 - 1, **limits) == 6
    assert largest_batch(TABLE, NASPIPE, budget_bytes=1439, **limits) == 0


def test_subnets_under_way_end_there_too():
    budget_bytes = 1440 + 4 * (5 * 22 + 110)
    limits = {"num_stages": 2, "batch": 4}
    assert most_in_flight(TABLE, NASPIPE, budget_bytes=budget_bytes, **limits) == 5
    assert most_in_flight(TABLE, NASPIPE, budget_bytes=budget_bytes - 1, **limits) == 4
    assert most_in_flight(TABLE, NASPIPE, budget_bytes=1, **limits) == 0
    with pytest.raises(ConfigError, match="expected 1 or more samples, found 0"):
        most_in_flight(TABLE, NASPIPE, num_stages=2, batch=0, budget_bytes=1)


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 6000), st.sampled_from(SYSTEMS))
def test_more_memory_never_hurts(stages: int, in_flight: int, budget_bytes: int, system: System):
    limits = {"num_stages": stages, "in_flight": in_flight, "sizes": range(1, 24)}
    found = largest_batch(TABLE, system, budget_bytes=budget_bytes, **limits)
    assert largest_batch(TABLE, system, budget_bytes=budget_bytes + 500, **limits) >= found


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(0, 6000), st.sampled_from((NASPIPE, VPIPE, GPIPE)))
def test_batch_and_subnets_under_way_agree(in_flight: int, budget_bytes: int, system: System):
    """On one stage there is nothing to cut: what fits by the one fits by the other."""
    limits = {"num_stages": 1, "budget_bytes": budget_bytes}
    batch = largest_batch(TABLE, system, in_flight=in_flight, sizes=range(1, 24), **limits)
    if batch:
        assert most_in_flight(TABLE, system, batch=batch, **limits) >= in_flight
    if 0 < batch < 23:
        assert most_in_flight(TABLE, system, batch=batch + 1, **limits) < in_flight
