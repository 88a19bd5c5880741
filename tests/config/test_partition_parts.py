"""Parts of a chain on stages in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.config.partition import Partition, make_partition, partition_along


@st.composite
def partitions(draw):
    num_stages = draw(st.integers(1, 5))
    bounds = sorted(draw(st.lists(st.integers(0, 9), min_size=num_stages, max_size=num_stages)))
    bounds[-1] = max(1, bounds[-1])
    return make_partition((0, *bounds), draw(st.permutations(range(num_stages))))


@given(partitions())
def test_every_block_is_on_one_stage_in_the_order_of_the_parts(partition):
    stages = range(partition.num_stages)
    row = {block: stage for stage in stages for block in partition.blocks(stage)}
    assert sorted(row) == [*range(partition.num_blocks)]
    assert all(partition.stage_of(block) == stage for block, stage in row.items())
    along = partition_along([row[block] for block in sorted(row)], partition.num_stages)
    assert [along.blocks(s) for s in stages if along.blocks(s)] == [
        partition.blocks(s) for s in stages if partition.blocks(s)
    ]


@given(partitions(), st.integers(1, 3), st.data())
def test_in_a_group_the_stages_are_those_of_the_group(partition, groups, data):
    group = data.draw(st.integers(0, groups - 1))
    whole = partition.in_group(group, groups)
    assert whole.num_stages == groups * partition.num_stages
    for block in range(partition.num_blocks):
        first = group * partition.num_stages
        assert whole.stage_of(block) == first + partition.stage_of(block)
    others = [s for s in range(whole.num_stages) if s // partition.num_stages != group]
    assert not any(whole.blocks(stage) for stage in others)


def test_stages_in_their_order_are_not_named():
    assert make_partition((0, 2, 5), (0, 1)) == make_partition((0, 2, 5)) == Partition((0, 2, 5))
    assert str(make_partition((0, 2, 5), (0, 1))) == "0:2:5"
    assert str(make_partition((0, 2, 5), (1, 0))) == "0:2:5 on 1,0"


@pytest.mark.parametrize("stages", [(0,), (0, 0), (1, 2), (0, 1, 2)])
def test_each_stage_has_one_part(stages):
    with pytest.raises(ConfigError, match="expected each stage from 0 to 1 once"):
        make_partition((0, 2, 5), stages)


def test_a_chain_that_comes_back_has_no_partition():
    assert partition_along([1, 1, 0, 2], 4).blocks(0) == range(2, 3)
    with pytest.raises(ConfigError, match="expected each stage's blocks in a row"):
        partition_along([1, 0, 1], 2)
