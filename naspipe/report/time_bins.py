"""Shares of time over the run: how much of each stretch a stage was busy, or waited and why."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind
from naspipe.report.reasons import Reason
from naspipe.report.waits import Wait

BUSY = "busy"
NUM_BINS = 120


class TimeBins(NamedTuple):
    """Equal stretches from the run's first record to its last.

    ``shares[stage][name][bin]`` is the share of a bin's time that the stage was ``busy``, or
    waited for a reason (by :class:`Reason`'s value); over the names they add up to 1.
    ``hits[bin]`` and ``reads[bin]`` count forwards and backwards by the time they began.
    """

    edges_ns: list[int]
    shares: list[dict[str, list[float]]]
    hits: list[int]
    reads: list[int]


def time_bins(
    accesses: Sequence[Access], waits: Iterable[Wait], num_stages: int, num_bins: int = NUM_BINS
) -> TimeBins:
    """Distribute waits over bins; what no wait covers is busy. Empty for an empty log."""
    if not accesses:
        return TimeBins([], [], [], [])
    start = min(access.start_ns for access in accesses)
    length = max(access.end_ns for access in accesses) - start
    num_bins = max(1, min(num_bins, length))
    edges = [start + length * place // num_bins for place in range(num_bins + 1)]
    waited = [{reason.value: [0] * num_bins for reason in Reason} for _ in range(num_stages)]
    for wait in waits:
        _spread(waited[wait.stage][wait.reason.value], edges, wait.start_ns, wait.end_ns)
    widths = [max(1, high - low) for low, high in pairwise(edges)]
    hits, reads = [0] * num_bins, [0] * num_bins
    for access in accesses:
        if access.kind is not AccessKind.WRITE:
            place = _bin(edges, access.start_ns)
            reads[place] += 1
            hits[place] += access.is_hit
    return TimeBins(edges, [_shares(stage, widths) for stage in waited], hits, reads)


def _shares(waited: dict[str, list[int]], widths: Sequence[int]) -> dict[str, list[float]]:
    shares = {
        name: [spent / width for spent, width in zip(column, widths, strict=True)]
        for name, column in waited.items()
    }
    idle = [sum(column) for column in zip(*shares.values(), strict=True)]
    return {BUSY: [1 - share for share in idle], **shares}


def _bin(edges: Sequence[int], time_ns: int) -> int:
    """The bin that a moment falls in; the last one holds the run's end too."""
    return min(len(edges) - 2, bisect_right(edges, time_ns) - 1)


def _spread(column: list[int], edges: Sequence[int], start_ns: int, end_ns: int) -> None:
    place = _bin(edges, start_ns)
    while start_ns < end_ns:
        until = end_ns if place + 2 == len(edges) else min(end_ns, edges[place + 1])
        column[place] += until - start_ns
        start_ns, place = until, place + 1
