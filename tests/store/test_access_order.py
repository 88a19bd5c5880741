"""Access orders as text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, AccessKind, LayerId, StreamId
from naspipe.store.access_order import (
    access_orders,
    by_steps,
    format_order,
    layer_order,
    parse_order,
)
from tests.store.fake_run import CHAINS, access, sequential_accesses

steps = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from("FB")))


def layer(block: int, candidate: int) -> LayerId:
    return LayerId(StreamId(0), block, candidate)


@given(steps=steps)
def test_text_comes_back_equal(steps: list[tuple[int, str]]) -> None:
    assert parse_order(format_order(steps)) == steps


@pytest.mark.parametrize("text", ["2", "F", "2F-", "2F 2B", "2W", "-1F", "2F--2B"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(LogError, match="expected an access order"):
        parse_order(text)


def test_sequential_orders() -> None:
    orders = access_orders(sequential_accesses(CHAINS))
    assert orders[layer(1, 1)] == "1F-1B-3F-3B"
    assert orders[layer(3, 0)] == "0F-0B-1F-1B-2F-2B-3F-3B"
    assert list(orders) == sorted(orders)


def test_a_frozen_layer_has_only_reads() -> None:
    assert access_orders(sequential_accesses(CHAINS))[layer(0, 0)] == "0F-1F-2F-3F"


def test_a_layer_nobody_used_has_an_empty_order() -> None:
    assert layer(1, 5) not in access_orders(sequential_accesses(CHAINS))


def test_the_backward_shows_only_as_its_write() -> None:
    records = [
        access(0, 0, 0, AccessKind.FORWARD, 0),
        access(0, 0, 1, AccessKind.FORWARD, 10, stage=1),
        access(0, 0, 0, AccessKind.BACKWARD, 20),
        access(0, 0, 1, AccessKind.BACKWARD, 30, stage=1),
        access(0, 0, 0, AccessKind.WRITE, 50, version=0),
    ]
    assert access_orders(records)[layer(0, 0)] == "0F-1F-0B"


@given(seed=st.integers(0, 1000), chains=st.lists(st.sampled_from(CHAINS), max_size=8))
def test_records_may_come_in_any_order(seed: int, chains: list[tuple[int, ...]]) -> None:
    records = sequential_accesses(chains)
    shuffled = random.Random(seed).sample(records, len(records))
    assert access_orders(shuffled) == access_orders(records)


def of_step(first_ns, reads, writes):
    """Accesses of one layer, one after the other from a time on."""
    kinds = [(y, AccessKind.FORWARD) for y in reads] + [(y, AccessKind.WRITE) for y in writes]
    return [
        Access(LayerId(0, 0, 0), y, kind, 0, 0, first_ns + place, first_ns + place + 1)
        for place, (y, kind) in enumerate(kinds)
    ]


def order_of(accesses, passes):
    by_time = sorted(accesses, key=lambda access: access.start_ns)
    return format_order(layer_order(by_steps(by_time, passes)))


def test_the_order_of_steps_is_that_of_one_group_whoever_computed_the_passes():
    one = of_step(0, [0, 1, 2], [0, 1, 2]) + of_step(10, [3, 4, 5], [3, 4, 5])
    expected = "0F-1F-2F-0B-1B-2B-3F-4F-5F-3B-4B-5B"
    assert order_of(one, 3) == format_order(layer_order(one)) == expected
    groups = of_step(0, [0, 1], [0, 1]) + of_step(4, [2], [2])
    groups += of_step(10, [5, 3], []) + of_step(12, [4], [3, 4, 5])
    assert order_of(groups, 3) == expected


def test_a_read_before_the_write_of_the_step_before_is_seen():
    early = of_step(0, [0, 1], [0]) + of_step(3, [2], [1]) + of_step(10, [3], [2, 3])
    assert order_of(early, 2) == "0F-1F-2F-0B-1B-3F-2B-3B"
    late = of_step(0, [0], [0, 1]) + of_step(3, [1, 2, 3], [2, 3])
    assert order_of(late, 2) == "0F-0B-1B-1F-2F-3F-2B-3B"
