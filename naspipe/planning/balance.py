"""The partition with the least peak stage time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from naspipe.core.errors import ConfigError, InvariantError
from naspipe.core.partition import Partition, make_partition


def balanced_partition(
    costs: Sequence[float],
    num_stages: int,
    homes: Mapping[int, int] | None = None,
    preferred: Partition | None = None,
    slack: float = 0.0,
) -> Partition:
    """Cut a chain of block costs into contiguous stages so that the dearest stage is cheapest.

    Dynamic programming over cuts, O(stages * blocks). Of equally good cuts the one with the
    earliest last bound is taken, then the earliest last but one.

    Args:
        costs: of each block of the chain, 0 or more, in any unit.
        num_stages: how many ranges, one block or more each.
        homes: blocks that must lie in a given stage's range.
        preferred: the result is the partition nearest to this one, by the sum of the distances
            of its cuts, among those whose peak is at most ``1 + slack`` times the least one;
            of equally near ones that with the earliest cuts.
        slack: what part of the least peak may be given up to be near ``preferred``.

    Raises:
        ConfigError: when there are more stages than blocks, or no partition has these homes.
    """
    num_blocks = len(costs)
    if num_stages > num_blocks:
        raise ConfigError(
            f"{num_stages} stages for {num_blocks} blocks: expected at most one stage per block; "
            f"choose --stages {num_blocks} or less"
        )
    sums = [0, *accumulate(costs)]
    spans = _cut_spans(num_blocks, num_stages, homes or {})
    peak, cuts = _least_peak(sums, spans)
    if preferred is not None:
        _check_preference(preferred, slack, spans)
        cuts = _nearest(sums, spans, peak * (1 + slack) if slack else peak, preferred.bounds)
    return make_partition((0, *cuts, num_blocks))


def _check_preference(preferred: Partition, slack: float, spans: Sequence[_Span]) -> None:
    num_stages, num_blocks = len(spans) - 1, spans[-1].last
    if (preferred.num_stages, preferred.num_blocks) != (num_stages, num_blocks):
        raise InvariantError(
            f"preferred partition {preferred}: expected {num_stages} stages and {num_blocks} blocks"
        )
    if slack < 0:
        raise InvariantError(f"slack of a partition: expected 0 or more, found {slack}")


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


def _least_peak(sums: Sequence[float], spans: Sequence[_Span]) -> tuple[float, list[int]]:
    """The least peak, and the cuts between stages that have it.

    ``peaks[stop]`` of the blocks before ``stop`` rises with ``stop``, and what is left for one
    more stage falls: the best cut is where they cross, and moves only forwards.
    """
    first_equal = _first_equal(sums)
    peaks = [sums[stop] for stop in range(spans[1].first, spans[1].last + 1)]
    chosen: list[list[int]] = []
    for before, span in pairwise(spans[1:]):
        row: list[float] = []
        starts: list[int] = []
        start, offset = before.first, before.first
        for stop in range(span.first, span.last + 1):
            end, upper = sums[stop], min(before.last, stop - 1)
            while start < upper and peaks[start - offset] < end - sums[start]:
                start += 1
            best, peak = start, max(peaks[start - offset], end - sums[start])
            if start > offset and end - sums[start - 1] <= peak:
                best, peak = max(offset, first_equal[start - 1]), end - sums[start - 1]
            row.append(peak)
            starts.append(best)
        peaks = row
        chosen.append(starts)
    cuts: list[int] = []
    stop = spans[-1].last
    for starts, span in zip(reversed(chosen), reversed(spans), strict=False):
        stop = starts[stop - span.first]
        cuts.append(stop)
    return peaks[-1], cuts[::-1]


def _first_equal(sums: Sequence[float]) -> list[int]:
    """For each place, the first one with the same sum: blocks that cost nothing lie between."""
    places: list[int] = []
    for place, total in enumerate(sums):
        places.append(places[-1] if place and sums[place - 1] == total else place)
    return places


def _nearest(
    sums: Sequence[float], spans: Sequence[_Span], limit: float, preferred: Sequence[int]
) -> list[int]:
    """The cuts nearest to the preferred ones, of those that keep every stage within the limit."""
    spans = _within(sums, spans, limit)
    if len(spans) < 3:
        return []
    span = spans[-2]
    distances = [abs(place - preferred[-2]) for place in range(span.first, span.last + 1)]
    followers: list[list[int]] = []
    for cut in range(len(spans) - 3, 0, -1):
        ahead, follower = _ahead(sums, limit, spans[cut], spans[cut + 1], distances)
        distances = [
            abs(place - preferred[cut]) + rest for place, rest in enumerate(ahead, spans[cut].first)
        ]
        followers.append(follower)
    cuts = [spans[1].first + distances.index(min(distances))]
    for follower, span in zip(reversed(followers), spans[1:], strict=False):
        cuts.append(follower[cuts[-1] - span.first])
    return cuts


def _within(sums: Sequence[float], spans: Sequence[_Span], limit: float) -> list[_Span]:
    """The spans less the places that no partition within the limit has."""
    lasts = [0]
    for span in spans[1:]:
        lasts.append(min(span.last, _latest_stop(sums, lasts[-1], limit)))
    firsts = [len(sums) - 1]
    for span in spans[-2::-1]:
        firsts.append(max(span.first, _earliest_start(sums, firsts[-1], limit)))
    return [_Span(*ends) for ends in zip(reversed(firsts), lasts, strict=True)]


def _latest_stop(sums: Sequence[float], start: int, limit: float) -> int:
    """How far a stage from ``start`` reaches within the limit."""
    before = sums[start]
    return bisect_right(sums, limit, key=lambda total: total - before) - 1


def _earliest_start(sums: Sequence[float], stop: int, limit: float) -> int:
    """From where a stage up to ``stop`` is within the limit."""
    end = sums[stop]
    return bisect_left(sums, -limit, key=lambda total: total - end)


def _ahead(
    sums: Sequence[float], limit: float, span: _Span, following: _Span, distances: Sequence[int]
) -> tuple[list[int], list[int]]:
    """For each place of a cut, the least distance of the following cuts, and the next of them.

    The following cut's places within reach are a window that moves with this cut, so a queue
    of those that may still be the nearest gives each minimum in constant time.
    """
    window: deque[int] = deque()
    ahead: list[int] = []
    follower: list[int] = []
    origin, entering = following.first, following.last
    for place in range(span.last, span.first - 1, -1):
        while entering >= max(place + 1, origin):
            while window and distances[window[0] - origin] >= distances[entering - origin]:
                window.popleft()
            window.appendleft(entering)
            entering -= 1
        while sums[window[-1]] - sums[place] > limit:
            window.pop()
        ahead.append(distances[window[-1] - origin])
        follower.append(window[-1])
    return ahead[::-1], follower[::-1]
