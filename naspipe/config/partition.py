"""The assignment of a subnet's blocks to stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId


class Partition(NamedTuple):
    """Contiguous parts of the chain, each on a separate stage.

    Part p has the blocks ``bounds[p] <= block < bounds[p + 1]``. Prints as ``0:25:51`` (two stages,
    51 blocks), or as ``0:25:51 on 1,0`` if the first part is on the second stage.
    """

    bounds: tuple[int, ...]
    stages: tuple[StageId, ...] = ()
    """The stage of each part; empty if part p is on stage p."""

    @property
    def num_stages(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_blocks(self) -> int:
        return self.bounds[-1]

    def blocks(self, stage: StageId) -> range:
        """Return the blocks of a stage, in forward order."""
        part = self.stages.index(stage) if self.stages else stage
        return range(self.bounds[part], self.bounds[part + 1])

    def stage_of(self, block: int) -> StageId:
        """Return the stage of a block."""
        part = bisect_right(self.bounds, block) - 1
        return self.stages[part] if self.stages else StageId(part)

    def in_group(self, group: int, num_groups: int) -> Partition:
        """Return the same cuts on the stages of one group; other stages have no blocks."""
        before = (0,) * (group * self.num_stages)
        behind = (self.num_blocks,) * ((num_groups - 1 - group) * self.num_stages)
        stages = list(range(num_groups * self.num_stages))
        if self.stages:
            first = group * self.num_stages
            stages[first : first + self.num_stages] = [first + stage for stage in self.stages]
        return on_stages(before + self.bounds + behind, stages)

    @property
    def without_blocks(self) -> Partition:
        """Return the partition of a pass with nothing to compute, on as many stages."""
        return Partition((0,) * len(self.bounds))

    def __str__(self) -> str:
        bounds = ":".join(map(str, self.bounds))
        return f"{bounds} on {','.join(map(str, self.stages))}" if self.stages else bounds


def on_stages(bounds: tuple[int, ...], stages: Sequence[int]) -> Partition:
    """Return parts with the stage of each; equal assignments become equal objects."""
    is_in_order = all(part == stage for part, stage in enumerate(stages))
    return Partition(bounds, () if is_in_order else tuple(map(StageId, stages)))


def make_partition(bounds: tuple[int, ...], stages: Sequence[int] = ()) -> Partition:
    """Check the bounds and make a partition; a stage may have no blocks.

    Args:
        bounds: the beginning of each part, and the end of the last one.
        stages: the stage of each part; by default, part p is on stage p.
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
    """Return the partition that runs each block of a chain on the stage given by ``row``."""
    runs = [(stage, len(list(own))) for stage, own in groupby(row)]
    order = [stage for stage, _ in runs]
    if len(set(order)) < len(order):
        raise ConfigError(f"stages {list(row)}: expected each stage's blocks in a row")
    lengths = dict(runs)
    absent = [stage for stage in range(num_stages) if stage not in lengths]
    order = sorted([*order, *absent]) if order == sorted(order) else [*order, *absent]
    bounds = accumulate((lengths.get(stage, 0) for stage in order), initial=0)
    return make_partition(tuple(bounds), order)
