"""Balanced partitions against every partition there is."""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.partition import Partition
from naspipe.plan.partitions import balanced_partition

costs = st.lists(
    st.one_of(st.integers(0, 4), st.integers(0, 1 << 40)), min_size=1, max_size=8
)  # small ones for ties


def all_bounds(num_blocks: int, num_stages: int) -> list[tuple[int, ...]]:
    return [(0, *cuts, num_blocks) for cuts in combinations(range(1, num_blocks), num_stages - 1)]


def peak(costs: list[int], bounds: tuple[int, ...], backlog: Sequence[int] = ()) -> int:
    before = backlog or (0,) * (len(bounds) - 1)
    return max(sum(costs[a:b]) + n for n, (a, b) in zip(before, pairwise(bounds), strict=True))


def first_choice(costs: list[int], num_stages: int) -> tuple[int, ...]:
    """Stage by stage from the end, the earliest bound that leaves the least peak before it."""
    if num_stages == 1:
        return (0, len(costs))
    heads = [first_choice(costs[:cut], num_stages - 1) for cut in range(num_stages - 1, len(costs))]
    whole = [(*head, len(costs)) for head in heads]
    return min(whole, key=lambda bounds: (peak(costs, bounds), bounds[-2]))


def are_home(bounds: tuple[int, ...], homes: dict[int, int]) -> bool:
    return all(bounds[stage] <= block < bounds[stage + 1] for block, stage in homes.items())


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


@settings(max_examples=200)
@given(costs, st.data())
def test_no_partition_has_a_lower_peak(costs: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    partition = balanced_partition(costs, num_stages)
    best = min(peak(costs, bounds) for bounds in all_bounds(len(costs), num_stages))
    assert (partition.num_stages, partition.num_blocks) == (num_stages, len(costs))
    assert peak(costs, partition.bounds) == best
    assert partition.bounds in all_bounds(len(costs), num_stages)
    assert partition.bounds == first_choice(costs, num_stages)


@settings(max_examples=300)
@given(costs, st.data())
def test_homes_a_preference_and_slack(costs: list[int], data: st.DataObject) -> None:
    """The whole contract, against every partition there is."""
    num_stages = data.draw(st.integers(1, len(costs)))
    everything = all_bounds(len(costs), num_stages)
    stage = st.integers(0, num_stages - 1)
    homes = data.draw(st.dictionaries(st.integers(0, len(costs) - 1), stage, max_size=3))
    preferred = data.draw(st.one_of(st.none(), st.sampled_from(everything)))
    slack = data.draw(st.sampled_from([0.0, 0.25, 1.0]))
    before = st.integers(-(1 << 40), 1 << 40)
    backlog = data.draw(st.one_of(st.just([]), st.tuples(*[before] * num_stages)))
    possible = [bounds for bounds in everything if are_home(bounds, homes)]
    wanted = None if preferred is None else Partition(preferred)
    if not possible:
        with pytest.raises(ConfigError, match="expected home stages that rise"):
            balanced_partition(costs, num_stages, homes, wanted, slack, backlog)
        return
    found = balanced_partition(costs, num_stages, homes, wanted, slack, backlog).bounds
    least = min(peak(costs, bounds, backlog) for bounds in possible)
    assert found in possible
    if preferred is None:
        assert peak(costs, found, backlog) == least
        return
    limit = max(least, least * (1 + slack))
    good = [bounds for bounds in possible if peak(costs, bounds, backlog) <= limit]
    assert found == min(good, key=lambda bounds: (distance(bounds, preferred), bounds))


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12), st.data())
def test_fractions_are_as_good(costs: list[float], data: st.DataObject) -> None:
    """Rounding never leaves a preference without a partition, and costs no more than itself."""
    num_stages = data.draw(st.integers(1, len(costs)))
    least = balanced_partition(costs, num_stages)
    wanted = Partition(data.draw(st.sampled_from(all_bounds(len(costs), num_stages))))
    near = balanced_partition(costs, num_stages, preferred=wanted)
    assert peak(costs, near.bounds) <= peak(costs, least.bounds) * (1 + 1e-12)
    assert distance(near.bounds, wanted.bounds) <= distance(least.bounds, wanted.bounds)


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


@pytest.mark.parametrize(
    ("costs", "homes", "bounds"),
    [
        ([1, 1, 1, 1], {3: 0}, None),  # the last block on the first of two stages
        ([1, 1, 1, 1], {2: 0}, (0, 3, 4)),
        ([1, 1, 1, 1], {1: 1}, (0, 1, 4)),
        ([1, 1, 1, 1], {0: 1}, None),
        ([1, 1, 1, 1], {2: 0, 1: 1}, None),
        ([1, 1, 1, 1], {0: 0, 3: 1}, (0, 2, 4)),
        ([1, 1, 1, 1], {0: 2}, None),
        ([1, 1, 1, 1], {4: 1}, None),
        ([1, 1, 1, 1], {0: -1}, None),
    ],
)
def test_homes_by_hand(
    costs: list[int], homes: dict[int, int], bounds: tuple[int, ...] | None
) -> None:
    if bounds is not None:
        assert balanced_partition(costs, 2, homes).bounds == bounds
        return
    with pytest.raises(ConfigError, match=r"2 stages for 4 blocks: .*; choose fewer stages"):
        balanced_partition(costs, 2, homes)


@pytest.mark.parametrize(
    ("slack", "bounds"),
    [
        (0.0, (0, 4, 8)),
        (0.2, (0, 4, 8)),
        (0.25, (0, 5, 8)),
        (0.5, (0, 6, 8)),
        (9.0, (0, 7, 8)),
    ],
)
def test_slack_is_spent_on_the_preference(slack: float, bounds: tuple[int, ...]) -> None:
    near = balanced_partition([1] * 8, 2, preferred=Partition((0, 7, 8)), slack=slack)
    assert near.bounds == bounds


def test_of_equally_near_partitions_the_earliest() -> None:
    """At most two blocks to a stage: 0:1:3:5 and 0:2:4:5 are each one block away."""
    near = balanced_partition([1] * 5, 3, preferred=Partition((0, 1, 4, 5)))
    assert near.bounds == (0, 1, 3, 5)
    near = balanced_partition([2] + [1] * 5, 4, preferred=Partition((0, 1, 2, 5, 6)))
    assert near.bounds == (0, 1, 2, 4, 6)


def test_a_preference_of_another_shape() -> None:
    for wanted in ((0, 2), (0, 1, 3), (0, 1, 2, 4)):
        with pytest.raises(InvariantError, match="expected 2 stages and 4 blocks"):
            balanced_partition([1] * 4, 2, preferred=Partition(wanted))
    with pytest.raises(InvariantError, match="slack"):
        balanced_partition([1] * 4, 2, preferred=Partition((0, 1, 4)), slack=-0.1)


def test_it_is_quick_enough_to_run_for_every_subnet() -> None:
    """0.2 ms on a quiet machine; 32 stages and 10,000 subnets leave it no more than a few."""
    costs = [1 + block * 7919 % 101 for block in range(52)]
    wanted = balanced_partition([1] * 52, 8)
    seconds = timeit.repeat(
        lambda: balanced_partition(costs, 8, {0: 0, 51: 7}, wanted, 0.01, [3] * 8),
        number=10, repeat=5,
    )  # fmt: skip
    assert min(seconds) / 10 < 0.004
