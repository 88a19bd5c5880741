"""How evenly the work fell on the stages, over the run and for each subnet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from naspipe.core.access import Access, AccessKind


class StageBalance(NamedTuple):
    """Time of records, in nanoseconds, and where each subnet was cut.

    ``busy_ns[letter][stage]`` sums the run's forwards (``F``), backwards (``B``), WRITEs (``W``).
    For each subnet of ``subnets``: ``peak_to_mean`` is the busiest stage's time over the mean
    of all stages (1 is perfect balance, the number of stages is the worst), and
    ``first_blocks[stage]`` the first block of the chain that the stage ran, -1 for none.
    """

    busy_ns: dict[str, list[int]]
    subnets: list[int]
    peak_to_mean: list[float]
    first_blocks: list[list[int]]


def stage_balance(accesses: Sequence[Access], num_stages: int) -> StageBalance:
    """Measure the balance of a run; empty columns for an empty log."""
    busy = {kind.value: [0] * num_stages for kind in AccessKind}
    by_subnet: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * num_stages)
    first: dict[tuple[int, int], list[int]] = defaultdict(lambda: [-1] * num_stages)
    for access in accesses:
        length_ns = access.end_ns - access.start_ns
        busy[access.kind.value][access.stage] += length_ns
        key = (access.layer.stream, access.sequence_id)
        by_subnet[key][access.stage] += length_ns
        known = first[key][access.stage]
        if known < 0 or access.layer.block < known:
            first[key][access.stage] = access.layer.block
    subnets = sorted(by_subnet)
    return StageBalance(
        busy,
        [number for _, number in subnets],
        [_peak_to_mean(by_subnet[key]) for key in subnets],
        [[first[key][stage] for key in subnets] for stage in range(num_stages)],
    )


def _peak_to_mean(times_ns: Sequence[int]) -> float:
    total = sum(times_ns)
    return max(times_ns) * len(times_ns) / total if total else 1.0
