"""Numbers computed by hand from small logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import Access, AccessKind
from naspipe.store.metrics import (
    bubble_ratio,
    causal_bound,
    makespan_seconds,
    summarize,
)
from tests.store.fake_run import CHAINS, access, sequential_accesses

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


def test_a_sequential_run_on_one_stage_has_no_bubble() -> None:
    assert bubble_ratio(sequential_accesses(CHAINS), 1) == 0


def test_a_bubble_by_hand() -> None:
    # stage 0  F F . . B B W .
    # stage 1  . . F B . . . .
    records = [
        access(0, 0, 0, F, 0, length_ns=20),
        access(1, 0, 0, F, 20, stage=1),
        access(1, 0, 0, B, 30, stage=1),
        access(0, 0, 0, B, 40, length_ns=20),
        access(0, 0, 0, W, 60, version=0),
    ]
    assert bubble_ratio(records, 2) == pytest.approx(1 - 70 / (2 * 70))
    assert makespan_seconds(records) == pytest.approx(70e-9)
    assert summarize(records, 2).passes_per_second == pytest.approx(1 / 70e-9)


def test_overlapping_records_count_once() -> None:
    records = [access(0, 0, 0, F, 0, length_ns=40), access(1, 0, 0, W, 10, length_ns=10)]
    assert bubble_ratio(records, 1) == 0


def test_the_first_tenth_is_warm_up_and_records_are_clipped() -> None:
    """Subnet 0 of 10 ends at 100; subnet 1 ran from 95 on; then half of the time is idle."""
    records = [access(0, 0, 0, F, 0), access(0, 0, 0, W, 90, version=0)]
    records += [access(0, 1, 1, F, 95, length_ns=10)]
    records += [access(0, 1, n, F, 90 + 10 * n, length_ns=5) for n in range(2, 10)]
    end = 90 + 10 * 9 + 5
    busy = 5 + 8 * 5
    assert bubble_ratio(records, 1) == pytest.approx(1 - busy / (end - 100))


def test_hit_rate_is_the_share_of_hits() -> None:
    records = [access(0, 0, n, F, n, stalled_ns=int(n == 1)) for n in range(4)]
    assert summarize(records, 1).hit_rate == 0.75


def test_an_empty_log_has_harmless_numbers() -> None:
    assert summarize([], 2) == (0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert causal_bound([], 2) == 0


def test_a_chain_through_one_layer_is_serial() -> None:
    """Every subnet uses the same layers: no number of stages helps."""
    records = sequential_accesses([(0, 0, 0, 0)] * 8)
    shared = [record for record in records if record.layer.block == 1]
    assert causal_bound(shared, 1) == 0
    assert causal_bound(shared, 4) == pytest.approx(0.75)


def test_subnets_without_a_common_layer_are_bound_only_by_their_number() -> None:
    chains = [(0, number, number) for number in range(4)]
    records = [r for r in sequential_accesses(chains) if r.layer.block]
    # One subnet: F F B W, then B and its W beside the first W: 2 F + 2 B + 1 W of 10 ns each
    # on the chain, 60 ns of work.
    assert causal_bound(records, 4) == 0
    assert causal_bound(records, 8) == pytest.approx(1 - 4 * 60 / (8 * 50))


def test_a_lagging_read_waits_for_the_version_it_read() -> None:
    """Two in flight on one layer: F0 F1 B0 W0 B1 W1, reads of version -1."""
    records = [
        access(0, 0, 0, F, 0),
        access(0, 0, 1, F, 10),
        access(0, 0, 0, B, 20),
        access(0, 0, 0, W, 30, version=0),
        access(0, 0, 1, B, 40),
        access(0, 0, 1, W, 50, version=1),
    ]
    assert causal_bound(records, 2) == pytest.approx(1 - 60 / (2 * 40))


def test_a_chain_may_end_in_the_backward_of_a_layer_that_is_never_written() -> None:
    """F0 F1 B1 W1 B0 with a frozen layer 0: its backward follows B1 beside the WRITE."""
    records = [
        access(0, 0, 0, F, 0),
        access(1, 0, 0, F, 10),
        access(1, 0, 0, B, 20),
        access(1, 0, 0, W, 30, version=0),
        access(0, 0, 0, B, 40, length_ns=50),
    ]
    assert causal_bound(records, 2) == pytest.approx(1 - 90 / (2 * 80))


def without_idle_time(records: list[Access], num_stages: int) -> list[Access]:
    return [record._replace(stage=record.layer.block % num_stages) for record in records]


@given(
    chains=st.lists(st.sampled_from(CHAINS), min_size=1, max_size=9),
    num_stages=st.integers(1, 4),
)
def test_no_schedule_beats_the_bound(chains: list[tuple[int, ...]], num_stages: int) -> None:
    records = without_idle_time(sequential_accesses(chains), num_stages)
    assert 0 <= causal_bound(records, num_stages) <= bubble_ratio(records, num_stages) + 1e-9
