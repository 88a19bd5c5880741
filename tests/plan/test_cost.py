"""Cost tables: what was not measured, streams, and which blocks are measured for which."""

from __future__ import annotations

from naspipe.config.blocks import Block, Shared
from naspipe.config.ids import SequenceId, StreamId, Subnet
from naspipe.config.space import Space
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable, first_of_kind, mean_costs


def test_stream_means_count_the_making_once_and_fill_in_what_was_not_measured() -> None:
    table = CostTable(
        {
            (0, 0): LayerCost(1, 2, 3, 40),
            (1, 0): LayerCost(10, 20, 0, 100),
            (1, 4): LayerCost(0, 0, 0, activation_bytes=18),
            (1, 2): LayerCost(2, 1, 0, 20),
        }
    )
    chains = [(0, 0), (0, 4), (0, 0), (0, 1)]
    subnets = [Subnet(StreamId(0), SequenceId(y), chain) for y, chain in enumerate(chains)]
    assert table.of(1, 1) == LayerCost(4, 7, 0, 40, 6)
    assert table.stream_means_ns(subnets) == [6.0 + 40 / 4, (30 + 0 + 30 + 11 + 100 + 40) / 4]
    assert LayerCost(1, 2, 3).total_ns == 6


def test_a_split_backward_leaves_a_part_of_it_to_the_write() -> None:
    cost, whole = LayerCost(10, 20, 3, inputs_ns=12, weights_ns=10), LayerCost(1, 2, 3)
    assert cost.split[:3] == (10, 12, 3) and cost.split.owed_ns == 10
    assert (cost.total_ns, cost.split.total_ns) == (33, 35)
    assert cost.split_ratio == 1.1 and whole.split_ratio == 0 and whole.split == whole
    table = CostTable({(0, 0): cost, (0, 1): cost, (1, 0): whole})
    assert table.split([(0, 1), (1, 0)]).costs == {**table.costs, (0, 1): cost.split}
    assert CostTable.of_rows(table.rows) == table


def test_blocks_of_one_kind_are_measured_once() -> None:
    two, three = [int] * 2, [int] * 3
    space = Space(
        "s",
        [
            Shared("stem", int),
            Block(two, kind="a"),
            Block(two),
            Block(two, kind="b"),
            Block(two, kind="a"),
            Block(two),
            Block(three, kind="a"),  # not of that kind, whatever it says
            Block(three, kind="a"),
            Shared("head", int),
        ],
    )
    assert first_of_kind(space) == (0, 1, 2, 3, 1, 5, 6, 6, 8)


def test_sizes_of_twins() -> None:
    small, large = LayerSize(512, 512, False), LayerSize(2048, 1024, True)
    table = SizeTable((0, 1, 1), {0: (small,), 1: (small, large)})
    assert [table.of(0, 0), table.of(1, 1), table.of(2, 1)] == [small, large, large]


def test_the_mean_of_what_all_have_measured() -> None:
    one = CostTable({(0, 0): LayerCost(10, 20, 3, 4, 8), (0, 1): LayerCost(1, 1, 1)})
    other = CostTable({(0, 0): LayerCost(20, 21, 5, 6, 8), (0, 2): LayerCost(1, 1, 1)})
    assert mean_costs([one, other]).costs == {(0, 0): LayerCost(15, 20, 4, 5, 8)}
    assert mean_costs([one]) is one
