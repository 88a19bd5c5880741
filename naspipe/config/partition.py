"""Which stage runs which blocks of one subnet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId


class Partition(NamedTuple):
    """Contiguous parts of the chain, each on a stage of its own.

    Part p has the blocks ``bounds[p] <= block < bounds[p + 1]``. Prints as ``0:25:51`` (two
    stages, 51 blocks), and as ``0:25:51 on 1,0`` where the first part is on the second stage.
    """

    bounds: tuple[int, ...]
    stages: tuple[StageId, ...] = ()
    """Of every part; empty where part p is on stage p."""

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.bounds) - 1

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the chain."""
        return self.bounds[-1]

    def blocks(self, stage: StageId) -> range:
        """The blocks that a stage runs, in forward order."""
        part = self.stages.index(stage) if self.stages else stage
        return range(self.bounds[part], self.bounds[part + 1])

    def stage_of(self, block: int) -> StageId:
        """The stage that runs a block."""
        part = bisect_right(self.bounds, block) - 1
        return self.stages[part] if self.stages else StageId(part)

    def in_group(self, group: int, num_groups: int) -> Partition:
        """The same cuts on the stages of one of several groups; those of the others are empty."""
        before = (0,) * (group * self.num_stages)
        behind = (self.num_blocks,) * ((num_groups - 1 - group) * self.num_stages)
        stages = list(range(num_groups * self.num_stages))
        if self.stages:
            first = group * self.num_stages
            stages[first : first + self.num_stages] = [first + stage for stage in self.stages]
        return on_stages(before + self.bounds + behind, stages)

    @property
    def without_blocks(self) -> Partition:
        """That of a pass with nothing to do, over as many stages."""
        return Partition((0,) * len(self.bounds))

    def __str__(self) -> str:
        bounds = ":".join(map(str, self.bounds))
        return f"{bounds} on {','.join(map(str, self.stages))}" if self.stages else bounds


def on_stages(bounds: tuple[int, ...], stages: Sequence[int]) -> Partition:
    """Parts with the stage of each, all of them once; equal ones are made equal."""
    is_in_order = all(part == stage for part, stage in enumerate(stages))
    return Partition(bounds, () if is_in_order else tuple(map(StageId, stages)))


def make_partition(bounds: tuple[int, ...], stages: Sequence[int] = ()) -> Partition:
    """Check the bounds and make a partition.

    A stage may have no blocks at all.

    Args:
        bounds: where each part begins, and where the last one ends.
        stages: of every part; the first part on the first stage, and so on, where it is empty.

    Raises:
        ConfigError: unless the bounds start at 0 and never fall, with one block at least, and each
            stage has one part.
    """
    ordered = all(low <= high for low, high in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] < 1 or not ordered:
        raise ConfigError(
            f"partition {bounds}: expected bounds that start at 0 and never fall, with one block "
            f"or more in all"
        )
    if stages and sorted(stages) != [*range(len(bounds) - 1)]:
        raise ConfigError(
            f"partition {bounds} on {tuple(stages)}: expected each stage from 0 to "
            f"{len(bounds) - 2} once"
        )
    return on_stages(bounds, stages or range(len(bounds) - 1))


def partition_along(row: Sequence[int], num_stages: int) -> Partition:
    """The partition that runs each block of a chain on the stage that ``row`` says.

    Raises:
        ConfigError: when the chain comes back to a stage that it has left.
    """
    runs = [(stage, len(list(own))) for stage, own in groupby(row)]
    order = [stage for stage, _ in runs]
    if len(set(order)) < len(order):
        raise ConfigError(f"stages {list(row)}: expected each stage's blocks in a row")
    lengths = dict(runs)
    absent = [stage for stage in range(num_stages) if stage not in lengths]
    order = sorted([*order, *absent]) if order == sorted(order) else [*order, *absent]
    bounds = accumulate((lengths.get(stage, 0) for stage in order), initial=0)
    return make_partition(tuple(bounds), order)
