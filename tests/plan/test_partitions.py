"""A partition for every subnet: homes, nearness, and what they cost."""

from __future__ import annotations

from itertools import combinations, groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.config.ids import SequenceId, StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.partitions import COUNTED, KEPT, NEAR, Partitioner, peak_to_mean


def stream(*chains: tuple[int, ...]) -> list[Subnet]:
    return [Subnet(StreamId(0), SequenceId(y), chain) for y, chain in enumerate(chains)]


def table(rows: list[list[int]]) -> CostTable:
    """Costs by block and candidate, spread over forward, backward and WRITE."""
    return CostTable(
        {
            (block, candidate): LayerCost(cost // 2, cost - cost // 2 - cost // 4, cost // 4)
            for block, row in enumerate(rows)
            for candidate, cost in enumerate(row)
        }
    )


ROWS = [[4], [1, 8], [1, 8], [1, 8], [1, 8], [4]]
COSTS = table(ROWS)
SHARED = [True, False, False, False, False, True]
SUBNETS = stream((0, 0, 0, 0, 0, 0), (0, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 0), (0, 1, 1, 1, 1, 0))


def stream_partitions(kind, subnets, *how):
    """The partition of every subnet."""
    return list(map(Partitioner(kind, subnets, *how), subnets))


def test_static_is_one_object_for_all() -> None:
    partitions = stream_partitions("static", SUBNETS, SHARED, COSTS, 2)
    assert [partition.bounds for partition in partitions] == [(0, 3, 6)] * 4
    assert all(partition is partitions[0] for partition in partitions)


def test_balanced_by_hand() -> None:
    partitions = stream_partitions("balanced", SUBNETS, SHARED, COSTS, 2)
    assert [partition.bounds for partition in partitions] == [
        (0, 3, 6),
        (0, 2, 6),  # 4+8 | 8+1+1+4
        (0, 4, 6),
        (0, 3, 6),
    ]
    assert partitions[0] is partitions[3]
    assert peak_to_mean(SUBNETS, partitions, COSTS) == [1.0, 14 / 13, 14 / 13, 1.0]
    static = stream_partitions("static", SUBNETS, SHARED, COSTS, 2)
    assert peak_to_mean(SUBNETS, static, COSTS) == [1.0, 20 / 13, 20 / 13, 1.0]


def test_shared_layers_stay_at_home() -> None:
    costs = table([[1, 9], [1], [1], [1, 9]])
    subnets = stream((1, 0, 0, 0), (0, 0, 0, 1))
    free = stream_partitions("balanced", subnets, [False] * 4, costs, 2)
    assert [partition.bounds for partition in free] == [(0, 1, 4), (0, 3, 4)]
    bound = stream_partitions("balanced", subnets, [False, True, True, False], costs, 2)
    assert [partition.bounds for partition in bound] == [(0, 2, 4), (0, 2, 4)]
    assert bound[0] is bound[1]


def test_a_gain_below_the_slack_moves_nothing() -> None:
    """The first subnet would gain 1012 - 1010."""
    costs = table([[1002], [8], [1000, 1004]])
    subnets = stream((0, 0, 1), *[(0, 0, 0)] * 9)
    for slack, bounds in ((0.0, (0, 2, 3)), (0.001, (0, 2, 3)), (NEAR, (0, 1, 3))):
        first = Partitioner("balanced", subnets, [False] * 3, costs, 2, slack)(subnets[0])
        assert first.bounds == bounds
    assert stream_partitions("balanced", subnets, [False] * 3, costs, 2)[0].bounds == (0, 1, 3)


def test_what_one_subnet_gives_a_stage_too_much_the_next_one_gives_it_less() -> None:
    """Three blocks never divide evenly over two stages; in the long run the stages do."""
    costs = table([[100]] * 3)
    subnets = stream(*[(0, 0, 0)] * 100)
    partitions = stream_partitions("balanced", subnets, [False] * 3, costs, 2)
    firsts = [len(partition.blocks(StageId(0))) for partition in partitions]
    assert set(firsts) == {1, 2}
    assert abs(sum(firsts) - 150) <= 2
    assert max(len(list(run)) for _, run in groupby(firsts)) <= 2, "and soon"


def test_one_stage_is_trivial() -> None:
    for kind in ("static", "balanced"):
        partitions = stream_partitions(kind, SUBNETS, SHARED, COSTS, 1)
        assert partitions == [Partition((0, 6))] * 4
        assert peak_to_mean(SUBNETS, partitions, COSTS) == [1.0] * 4


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="partition 'mirrored': expected balanced or static"):
        stream_partitions("mirrored", SUBNETS, SHARED, COSTS, 2)
    for kind in ("static", "balanced"):
        with pytest.raises(ConfigError, match="7 stages for 6 blocks"):
            stream_partitions(kind, SUBNETS, SHARED, COSTS, 7)


def test_layers_without_cost_are_in_balance() -> None:
    costs = table([[0], [0], [0]])
    assert peak_to_mean(stream((0, 0, 0)), [Partition((0, 1, 3))], costs) == [1.0]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[list[int]], list[bool], list[Subnet]]:
    num_blocks = draw(st.integers(1, 7))
    shared = draw(st.lists(st.booleans(), min_size=num_blocks, max_size=num_blocks))
    rows = [
        draw(st.lists(st.integers(0, 50), min_size=1 if one else 3, max_size=1 if one else 3))
        for one in shared
    ]
    chain = st.tuples(*(st.integers(0, len(row) - 1) for row in rows))
    return rows, shared, stream(*draw(st.lists(chain, min_size=1, max_size=6)))


@settings(max_examples=150)
@given(streams(), st.data())
def test_every_subnet_has_its_least_peak(
    drawn: tuple[list[list[int]], list[bool], list[Subnet]], data: st.DataObject
) -> None:
    rows, shared, subnets = drawn
    num_stages = data.draw(st.integers(1, min(4, len(rows))))
    slack = data.draw(st.sampled_from([0.0, 0.01, 0.5]))
    costs = table(rows)
    static = stream_partitions("static", subnets, shared, costs, num_stages)[0]
    partitions = stream_partitions("balanced", subnets, shared, costs, num_stages, slack)
    everything = [
        Partition((0, *cuts, len(rows)))
        for cuts in combinations(range(1, len(rows)), num_stages - 1)
    ]
    homes = {block: static.stage_of(block) for block, flag in enumerate(shared) if flag}
    possible = [p for p in everything if all(p.stage_of(b) == s for b, s in homes.items())]
    backlog = [0] * num_stages
    for subnet, partition in zip(subnets, partitions, strict=True):
        spent = [rows[block][candidate] for block, candidate in enumerate(subnet.chain)]

        def given(one: Partition, spent: list[int] = spent) -> list[int]:
            stages = (one.blocks(StageId(stage)) for stage in range(num_stages))
            return [sum(spent[block] for block in blocks) for blocks in stages]

        def peak(one: Partition, before: list[int] = backlog) -> int:
            return max(n + int(COUNTED * b) for n, b in zip(given(one), before, strict=True))

        good = [p for p in possible if peak(p) <= min(map(peak, possible)) * (1 + slack)]
        assert partition in good
        if static in good:
            assert partition == static
        loads, mean = given(partition), sum(spent) // num_stages
        ratio = max(loads) * num_stages / sum(spent) if sum(spent) else 1.0
        assert peak_to_mean([subnet], [partition], costs) == [ratio]
        backlog = [int(KEPT * (b + n - mean)) for b, n in zip(backlog, loads, strict=True)]
    assert len({id(partition) for partition in partitions}) == len(set(partitions))
