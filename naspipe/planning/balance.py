"""The partition with the least peak stage time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from naspipe.core.errors import ConfigError
from naspipe.core.partition import Partition, make_partition


def balanced_partition(costs: Sequence[float], num_stages: int) -> Partition:
    """Cut a chain of block costs into contiguous stages so that the dearest stage is cheapest.

    Dynamic programming over the first b blocks on the first s stages; of equally good cuts
    the one with the earliest last bound is taken. O(blocks² * stages).

    Raises:
        ConfigError: when there are more stages than blocks.
    """
    num_blocks = len(costs)
    if num_stages > num_blocks:
        raise ConfigError(
            f"{num_stages} stages for {num_blocks} blocks: expected at most one stage per block; "
            f"choose --stages {num_blocks} or less"
        )
    sums = [0.0, *accumulate(costs)]
    peaks = [sums[:]]
    cuts: list[list[int]] = []
    for stages in range(2, num_stages + 1):
        row, cut = [float("inf")] * (num_blocks + 1), [0] * (num_blocks + 1)
        for stop in range(stages, num_blocks + 1):
            row[stop], cut[stop] = min(
                (max(peaks[-1][start], sums[stop] - sums[start]), start)
                for start in range(stages - 1, stop)
            )
        peaks.append(row)
        cuts.append(cut)
    bounds = [num_blocks]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    bounds.append(0)
    return make_partition(tuple(reversed(bounds)))
