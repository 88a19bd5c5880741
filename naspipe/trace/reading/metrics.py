"""Numbers of a run, from its access log alone and the same for the runtime and the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from naspipe.core.access import Access, AccessKind
from naspipe.core.ids import INITIAL, LayerId, SequenceId, StageId, StreamId, Version

WARM_UP_SHARE = 10
"""The first 1 in 10 subnets of each stream are warm-up."""

_Pass = tuple[StreamId, SequenceId]


class Summary(NamedTuple):
    """What one run's access log says; times run from its first record to its last."""

    num_passes: int
    seconds: float
    passes_per_second: float
    bubble_ratio: float
    hit_rate: float
    stall_ratio: float


def summarize(accesses: Sequence[Access], num_stages: int) -> Summary:
    """Every number of :class:`Summary`; all are 0 for an empty log, the hit rate then 1."""
    return Summary(
        len(_last_ends(accesses)),
        makespan_seconds(accesses),
        passes_per_second(accesses),
        bubble_ratio(accesses, num_stages),
        hit_rate(accesses),
        stall_ratio(accesses, num_stages),
    )


def makespan_seconds(accesses: Sequence[Access]) -> float:
    """From the start of the first record to the end of the last."""
    if not accesses:
        return 0.0
    start = min(access.start_ns for access in accesses)
    return (max(access.end_ns for access in accesses) - start) / 1e9


def passes_per_second(accesses: Sequence[Access]) -> float:
    """Passes of all streams over the makespan, warm-up included."""
    seconds = makespan_seconds(accesses)
    return len(_last_ends(accesses)) / seconds if seconds else 0.0


def hit_rate(accesses: Sequence[Access]) -> float:
    """The share of forwards and backwards whose layer was on the device when they could begin.

    WRITEs do not count: each follows its backward at once (NASPipe, Table 2: "cache hit").
    """
    reads = [access.is_hit for access in accesses if access.kind is not AccessKind.WRITE]
    return sum(reads) / len(reads) if reads else 1.0


def stall_ratio(accesses: Sequence[Access], num_stages: int) -> float:
    """Time that stages waited for loads / (stages x makespan), after the warm-up."""
    start = warm_up_end_ns(accesses)
    if start is None:
        return 0.0
    end = max(access.end_ns for access in accesses)
    stalled = sum(
        min(access.stalled_ns, access.start_ns - start)
        for access in accesses
        if access.stalled_ns and access.start_ns > start
    )
    return stalled / (num_stages * (end - start)) if end > start else 0.0


def bubble_ratio(accesses: Sequence[Access], num_stages: int) -> float:
    """1 - busy time / (stages x makespan), after the warm-up.

    Busy is the time that F, B and W records cover on their stage. The warm-up ends when the
    first tenth of the subnets (by sequence ID, rounded down) is completely written; records
    that reach across that moment count from there on. 0 for an empty log.
    """
    start = warm_up_end_ns(accesses)
    if start is None:
        return 0.0
    end = max(access.end_ns for access in accesses)
    intervals: dict[StageId, list[tuple[int, int]]] = defaultdict(list)
    for access in accesses:
        if access.end_ns > start:
            intervals[access.stage].append((max(start, access.start_ns), access.end_ns))
    busy = sum(_covered(stage) for stage in intervals.values())
    return 1 - busy / (num_stages * (end - start)) if end > start else 0.0


def causal_bound(accesses: Sequence[Access], num_stages: int) -> float:
    """The least bubble ratio that any schedule of these measured accesses can have.

    1 - min(1, work / (stages x longest chain)). In a chain, a subnet's blocks follow one
    another forward, then backward; a WRITE follows its backward and the layer's WRITE before
    it; a READ follows the WRITE of the version it read (so for exact layers the previous
    user's). Work is the time of all F, B and W records, warm-up included.
    """
    work = sum(access.end_ns - access.start_ns for access in accesses)
    longest = _longest_chain_ns(accesses)
    return 1 - min(1.0, work / (num_stages * longest)) if longest else 0.0


def _longest_chain_ns(accesses: Iterable[Access]) -> int:
    passes: dict[_Pass, list[Access]] = defaultdict(list)
    for access in accesses:
        passes[access.layer.stream, access.sequence_id].append(access)
    written: dict[tuple[LayerId, Version], int] = {}
    newest: dict[LayerId, int] = {}
    longest = 0
    for key in sorted(passes, key=lambda key: (key[1], key[0])):
        records = passes[key]
        ends, longest_backward = _backward_ends(records, written)
        longest = max(longest, longest_backward)
        for access in records:
            if access.kind is AccessKind.WRITE:
                start = max(ends.get(access.layer, 0), newest.get(access.layer, 0))
                end = start + access.end_ns - access.start_ns
                newest[access.layer] = written[access.layer, access.version] = end
                longest = max(longest, end)
    return longest


def _backward_ends(
    records: Iterable[Access], written: dict[tuple[LayerId, Version], int]
) -> tuple[dict[LayerId, int], int]:
    """When each layer's last backward of one pass ends at the earliest, and the pass's last."""
    clock = 0
    ends: dict[LayerId, int] = {}
    for access in sorted(records, key=_chain_key):
        if access.kind is AccessKind.WRITE:
            continue
        if access.kind is AccessKind.FORWARD and access.version != INITIAL:
            clock = max(clock, written.get((access.layer, access.version), 0))
        clock += access.end_ns - access.start_ns
        if access.kind is AccessKind.BACKWARD:
            ends[access.layer] = max(ends.get(access.layer, 0), clock)
    return ends, clock


def _chain_key(access: Access) -> tuple[bool, int, int]:
    """Rising blocks forward and falling blocks backward."""
    is_forward = access.kind is AccessKind.FORWARD
    block = access.layer.block
    return (not is_forward, block if is_forward else -block, access.start_ns)


def _last_ends(accesses: Iterable[Access]) -> dict[_Pass, int]:
    """When each pass's last record ended."""
    ends: dict[_Pass, int] = {}
    for access in accesses:
        key = (access.layer.stream, access.sequence_id)
        if access.end_ns > ends.get(key, -1):
            ends[key] = access.end_ns
    return ends


def warm_up_end_ns(accesses: Sequence[Access]) -> int | None:
    """The moment from which numbers count; None for an empty log."""
    if not accesses:
        return None
    ends = _last_ends(accesses)
    by_stream: dict[StreamId, list[int]] = defaultdict(list)
    for (stream, _), end in sorted(ends.items()):
        by_stream[stream].append(end)
    warm_up = [
        end for stream in by_stream.values() for end in stream[: len(stream) // WARM_UP_SHARE]
    ]
    return max(warm_up, default=min(access.start_ns for access in accesses))


def _covered(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
