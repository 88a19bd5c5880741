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
    of all stages of its group (1 is perfect balance, their number is the worst), and
    ``first_blocks[stage]`` the first block of the chain that the stage ran, -1 for none.
    """

    busy_ns: dict[str, list[int]]
    subnets: list[int]
    peak_to_mean: list[float]
    first_blocks: list[list[int]]


def stage_balance(accesses: Sequence[Access], num_stages: int, num_groups: int = 1) -> StageBalance:
    """Measure the balance of a run; empty columns for an empty log.

    Args:
        accesses: its log.
        num_stages: of all groups.
        num_groups: each subnet goes through the stages of one of them.
    """
    of_each = num_stages // num_groups
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
        [_peak_to_mean(by_subnet[key], of_each) for key in subnets],
        [[first[key][stage] for key in subnets] for stage in range(num_stages)],
    )


def _peak_to_mean(times_ns: Sequence[int], num_stages: int) -> float:
    total = sum(times_ns)
    return max(times_ns) * num_stages / total if total else 1.0
