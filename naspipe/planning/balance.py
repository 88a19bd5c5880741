"""The partition with the least peak stage time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.partition import Partition, make_partition


def balanced_partition(
    costs: Sequence[float],
    num_stages: int,
    homes: Mapping[int, int] | None = None,
    preferred: Partition | None = None,
    slack: float = 0.0,
    backlog: Sequence[float] = (),
) -> Partition:
    """Cut a chain of block costs into contiguous stages so that the dearest stage is cheapest.

    Dynamic programming over cuts, O(stages * blocks ** 2) in whole arrays. Of equally good cuts
    the one with the earliest last bound is taken, then the earliest last but one.

    Args:
        costs: of each block of the chain, 0 or more, in any unit.
        num_stages: how many ranges, one block or more each.
        homes: blocks that must lie in a given stage's range.
        preferred: the result is the partition nearest to this one, by the sum of the distances
            of its cuts, among those whose peak is at most ``1 + slack`` times the least one;
            of equally near ones that with the earliest cuts.
        slack: what part of the least peak may be given up to be near ``preferred``.
        backlog: what each stage has to do already, in the unit of ``costs``, or less than 0 for
            time to spare; none by default. It counts as part of the stage's cost.

    Raises:
        ConfigError: when there are more stages than blocks, or no partition has these homes.
    """
    num_blocks = len(costs)
    if num_stages > num_blocks:
        raise ConfigError(
            f"{num_stages} stages for {num_blocks} blocks: expected at most one stage per block; "
            f"choose --stages {num_blocks} or less"
        )
    spans = _cut_spans(num_blocks, num_stages, homes or {})
    stages = _stage_costs(costs, spans, backlog or (0,) * num_stages)
    peak, cuts = _least_peak(stages, spans)
    if preferred is not None:
        _check_preference(preferred, slack, spans)
        limit = max(peak, peak * (1 + slack)) if slack else peak
        cuts = _nearest(stages, spans, limit, preferred.bounds)
    return make_partition((0, *cuts, num_blocks))


def _check_preference(preferred: Partition, slack: float, spans: Sequence[_Span]) -> None:
    num_stages, num_blocks = len(spans) - 1, spans[-1].last
    if (preferred.num_stages, preferred.num_blocks) != (num_stages, num_blocks):
        raise InvariantError(
            f"preferred partition {preferred}: expected {num_stages} stages and {num_blocks} blocks"
        )
    if slack < 0:
        raise InvariantError(f"slack of a partition: expected 0 or more, found {slack}")


_Costs = npt.NDArray[np.float64]


class _Span(NamedTuple):
    """The places where a cut may be, both ends included."""

    first: int
    last: int


def _cut_spans(num_blocks: int, num_stages: int, homes: Mapping[int, int]) -> list[_Span]:
    """Where each cut may be, from the chain's beginning (0) to its end.

    First and last places rise from cut to cut, so that every place of a span can be had.
    """
    first = [*range(num_stages), num_blocks]
    last = [0, *range(num_blocks - num_stages + 1, num_blocks + 1)]
    for block, stage in homes.items():
        if not (0 <= block < num_blocks and 0 <= stage < num_stages):
            raise _impossible(homes, num_blocks, num_stages)
        first[stage + 1] = max(first[stage + 1], block + 1)
        last[stage] = min(last[stage], block)
    for cut in range(num_stages):
        first[cut + 1] = max(first[cut + 1], first[cut] + 1)
    for cut in reversed(range(num_stages)):
        last[cut] = min(last[cut], last[cut + 1] - 1)
    spans = [_Span(*ends) for ends in zip(first, last, strict=True)]
    if any(span.first > span.last for span in spans):
        raise _impossible(homes, num_blocks, num_stages)
    return spans


def _impossible(homes: Mapping[int, int], num_blocks: int, num_stages: int) -> ConfigError:
    found = ", ".join(f"block {block} on stage {stage}" for block, stage in sorted(homes.items()))
    return ConfigError(
        f"{num_stages} stages for {num_blocks} blocks: expected home stages that rise with the "
        f"blocks and leave a block to every stage, found {found}; choose fewer stages"
    )


def _stage_costs(
    costs: Sequence[float], spans: Sequence[_Span], backlog: Sequence[float]
) -> list[_Costs]:
    """For each stage, what it costs from each place of its start's span to each of its stop's."""
    sums = np.array([0, *accumulate(costs)], dtype=np.float64)  # exact for integers up to 2 ** 53
    places = np.arange(len(sums))
    whole = np.where(places[:, None] < places, sums - sums[:, None], np.inf)
    return [
        whole[start.first : start.last + 1, stop.first : stop.last + 1] + before
        for start, stop, before in zip(spans, spans[1:], backlog, strict=False)
    ]


def _least_peak(stages: Sequence[_Costs], spans: Sequence[_Span]) -> tuple[float, list[int]]:
    """The least peak, and the cuts between stages that have it."""
    peaks = stages[0][0]
    chosen = []
    for cost in stages[1:]:
        ways = np.maximum(peaks[:, None], cost)
        chosen.append(ways.argmin(axis=0))
        peaks = ways.min(axis=0)
    cuts: list[int] = []
    place = 0
    for starts, span in zip(reversed(chosen), spans[-2::-1], strict=False):
        place = int(starts[place])
        cuts.append(span.first + place)
    return float(peaks[0]), cuts[::-1]


def _nearest(
    stages: Sequence[_Costs], spans: Sequence[_Span], limit: float, preferred: Sequence[int]
) -> list[int]:
    """The cuts nearest to the preferred ones, of those that keep every stage within the limit."""
    distances = np.zeros(1)
    followers = []
    for cost, span, wanted in zip(reversed(stages), spans[-2::-1], preferred[-2::-1], strict=True):
        ways = np.where(cost <= limit, distances, np.inf)
        followers.append(ways.argmin(axis=1))
        distances = np.abs(np.arange(span.first, span.last + 1) - wanted) + ways.min(axis=1)
    cuts: list[int] = []
    place = 0
    for follower, span in zip(reversed(followers), spans[1:-1], strict=False):
        place = int(follower[place])
        cuts.append(span.first + place)
    return cuts
