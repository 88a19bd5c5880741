"""Balanced partitions against every partition there is."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.core.errors import ConfigError
from naspipe.core.ids import SequenceId, StreamId
from naspipe.core.subnet import Subnet
from naspipe.planning.balance import balanced_partition
from naspipe.planning.cost import CostTable, LayerCost

costs = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8)


def all_bounds(num_blocks: int, num_stages: int) -> list[tuple[int, ...]]:
    return [(0, *cuts, num_blocks) for cuts in combinations(range(1, num_blocks), num_stages - 1)]


def peak(costs: list[int], bounds: tuple[int, ...]) -> int:
    return max(sum(costs[low:high]) for low, high in pairwise(bounds))


@settings(max_examples=200)
@given(costs, st.data())
def test_no_partition_has_a_lower_peak(costs: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    partition = balanced_partition(costs, num_stages)
    best = min(peak(costs, bounds) for bounds in all_bounds(len(costs), num_stages))
    assert (partition.num_stages, partition.num_blocks) == (num_stages, len(costs))
    assert peak(costs, partition.bounds) == best
    assert partition.bounds in all_bounds(len(costs), num_stages)
    assert balanced_partition(costs, num_stages) == partition


@pytest.mark.parametrize(
    ("costs", "num_stages", "bounds"),
    [
        ([5], 1, (0, 1)),
        ([1, 1, 1, 1], 2, (0, 2, 4)),
        ([9, 1, 1, 1], 2, (0, 1, 4)),
        ([1, 1, 1, 9], 2, (0, 3, 4)),
        ([3, 1, 4, 1, 5], 3, (0, 2, 4, 5)),
        ([1, 1, 1], 2, (0, 1, 3)),  # of equally good cuts, the earliest
        ([0, 0, 0, 0], 3, (0, 1, 2, 4)),
        ([2, 2, 2], 3, (0, 1, 2, 3)),
    ],
)
def test_by_hand(costs: list[int], num_stages: int, bounds: tuple[int, ...]) -> None:
    assert balanced_partition(costs, num_stages).bounds == bounds


@pytest.mark.parametrize(("num_blocks", "num_stages"), [(1, 2), (3, 4), (3, 99)])
def test_more_stages_than_blocks(num_blocks: int, num_stages: int) -> None:
    with pytest.raises(ConfigError) as caught:
        balanced_partition([1.0] * num_blocks, num_stages)
    assert str(caught.value) == (
        f"{num_stages} stages for {num_blocks} blocks: expected at most one stage per block; "
        f"choose --stages {num_blocks} or less"
    )


def test_stream_means_count_the_making_once_and_fill_in_what_was_not_measured() -> None:
    table = CostTable(
        {
            (0, 0): LayerCost(1, 2, 3, 40),
            (1, 0): LayerCost(10, 20, 0, 100),
            (1, 4): LayerCost(0, 0, 0),
            (1, 2): LayerCost(2, 1, 0, 20),
        }
    )
    chains = [(0, 0), (0, 4), (0, 0), (0, 1)]
    subnets = [Subnet(StreamId(0), SequenceId(y), chain) for y, chain in enumerate(chains)]
    assert table.of(1, 1) == LayerCost(4, 7, 0, 40)
    assert table.stream_means_ns(subnets) == [6.0 + 40 / 4, (30 + 0 + 30 + 11 + 100 + 40) / 4]
    assert LayerCost(1, 2, 3).total_ns == 6
