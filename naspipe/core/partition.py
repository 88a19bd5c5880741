"""Which stage runs which blocks of one subnet."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from naspipe.core.errors import ConfigError
from naspipe.core.ids import StageId


class Partition(NamedTuple):
    """Contiguous block ranges: stage s runs blocks ``bounds[s] <= block < bounds[s + 1]``.

    Prints as ``0:25:51`` (two stages, 51 blocks).
    """

    bounds: tuple[int, ...]

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
        return range(self.bounds[stage], self.bounds[stage + 1])

    def stage_of(self, block: int) -> StageId:
        """The stage that runs a block."""
        return StageId(bisect_right(self.bounds, block) - 1)

    def in_group(self, group: int, num_groups: int) -> Partition:
        """The same cuts on the stages of one of several groups; those of the others are empty."""
        before = (0,) * (group * self.num_stages)
        behind = (self.num_blocks,) * ((num_groups - 1 - group) * self.num_stages)
        return Partition(before + self.bounds + behind)

    @property
    def without_blocks(self) -> Partition:
        """That of a pass with nothing to do, over as many stages."""
        return Partition((0,) * len(self.bounds))

    def __str__(self) -> str:
        return ":".join(map(str, self.bounds))


def make_partition(bounds: tuple[int, ...]) -> Partition:
    """Check the bounds and make a partition.

    A stage may have no blocks at all.

    Raises:
        ConfigError: unless the bounds start at 0 and never fall, with one block at least.
    """
    ordered = all(low <= high for low, high in pairwise(bounds))
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] < 1 or not ordered:
        raise ConfigError(
            f"partition {bounds}: expected bounds that start at 0 and never fall, with one block "
            f"or more in all"
        )
    return Partition(bounds)
