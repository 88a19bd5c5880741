"""Metrics of a run, computed from its access log alone, for both the runtime and the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, SequenceId, StreamId, Version
from naspipe.store.access_columns import WRITE, AccessColumns, Integers, from_accesses

WARM_UP_SHARE = 10
"""The first tenth of the subnets of each stream is warm-up."""

_NEVER = np.iinfo(np.int64).min

Log = Sequence[Access] | AccessColumns
"""Records in any order."""

Parts = Callable[[], Iterator[AccessColumns]]
"""Every call yields the log in order of time from the beginning."""


class Summary(NamedTuple):
    """Metrics of an access log.

    ``seconds`` is the makespan: from the start of the first record to the end of the last, warm-up
    included. ``passes_per_second`` is the number of passes of all streams divided by the makespan.
    ``bubble_ratio`` is 1 - busy time / (stages x makespan), where busy time is covered by F, B and
    W records of the stage. ``stall_ratio`` is the time that stages waited for loads / (stages x
    makespan). Both exclude the warm-up, which ends when the first tenth of the subnets (by sequence
    ID, rounded down) is completely written; records that span that moment count from there on.
    ``hit_rate`` is the fraction of forwards and backwards whose layer was on the device when they
    could start (NASPipe, Table 2: "cache hit"). WRITEs do not count, because each immediately
    follows its backward.
    """

    num_passes: int
    seconds: float
    passes_per_second: float
    bubble_ratio: float
    hit_rate: float
    stall_ratio: float


def summarize(accesses: Log, num_stages: int) -> Summary:
    """Summarize a whole log; see :func:`summarize_parts`."""
    columns = _as_columns(accesses).by_time()
    return summarize_parts(lambda: iter([columns] if len(columns) else []), num_stages)


def summarize_parts(parts: Parts, num_stages: int) -> Summary:
    """Summarize a log of any length, which is read twice.

    If a run was resumed on fewer stages, all stages that have records count. All values of an empty
    log are 0, except for a hit rate of 1.

    Raises:
        LogError: if the log is damaged.
    """
    start_ns: int | None = None
    end_ns = reads = hits = 0
    ends: dict[int, Integers] = {}
    for part in parts():
        is_read = part.kind != WRITE
        reads += int(is_read.sum())
        hits += int((part.stalled_ns[is_read] == 0).sum())
        start_ns = int(part.start_ns[0]) if start_ns is None else start_ns
        end_ns = max(end_ns, int(part.end_ns.max()))
        num_stages = max(num_stages, int(part.stage.max()) + 1)
        _note_ends(ends, part)
    if start_ns is None:
        return Summary(0, 0.0, 0.0, 0.0, 1.0, 0.0)

    warm_ns = _warm_up_end_ns(ends, start_ns)
    busy_ns = stalled_ns = 0
    reached: dict[int, int] = {}  # the time up to which each stage is counted
    for part in parts():
        stalls = (part.stalled_ns != 0) & (part.start_ns > warm_ns)
        since = part.start_ns[stalls] - warm_ns
        stalled_ns += int(np.minimum(part.stalled_ns[stalls], since).sum())
        for stage in np.unique(part.stage).tolist():
            rows = (part.stage == stage) & (part.end_ns > warm_ns)
            if rows.any():  # add the length of the union of intervals, sorted by start
                first = reached.get(stage, warm_ns)
                until = np.maximum(np.maximum.accumulate(part.end_ns[rows]), first)
                before = np.concatenate([[first], until[:-1]])
                starts = np.maximum(part.start_ns[rows], before)
                busy_ns += int((part.end_ns[rows] - starts).clip(min=0).sum())
                reached[stage] = int(until[-1])

    passes = sum(int((own != _NEVER).sum()) for own in ends.values())
    seconds = (end_ns - start_ns) / 1e9
    stages_ns = num_stages * (end_ns - warm_ns)
    return Summary(
        passes,
        seconds,
        passes / seconds if seconds else 0.0,
        1 - busy_ns / stages_ns if stages_ns > 0 else 0.0,
        hits / reads if reads else 1.0,
        stalled_ns / stages_ns if stages_ns > 0 else 0.0,
    )


def bubble_ratio(accesses: Log, num_stages: int) -> float:
    """See :class:`Summary`."""
    return summarize(accesses, num_stages).bubble_ratio


def makespan_seconds(accesses: Log) -> float:
    """Return the time from the start of the first record to the end of the last."""
    columns = _as_columns(accesses)
    return (int(columns.end_ns.max()) - int(columns.start_ns.min())) / 1e9 if len(columns) else 0.0


def warm_up_end_ns(accesses: Log) -> int | None:
    """Return the time at which warm-up ends; None for an empty log."""
    columns = _as_columns(accesses)
    if not len(columns):
        return None
    ends: dict[int, Integers] = {}
    _note_ends(ends, columns)
    return _warm_up_end_ns(ends, int(columns.start_ns.min()))


def _as_columns(accesses: Log) -> AccessColumns:
    return accesses if isinstance(accesses, AccessColumns) else from_accesses(accesses)


def _note_ends(ends: dict[int, Integers], part: AccessColumns) -> None:
    """Update the end times of the last record of each pass, by stream and sequence ID."""
    for stream in np.unique(part.stream).tolist():
        own = part.stream == stream
        numbers = part.sequence_id[own]
        known = ends.get(stream, np.empty(0, np.int64))
        if (most := int(numbers.max()) + 1) > len(known):
            longer = np.full(max(most, 2 * len(known)), _NEVER)
            longer[: len(known)] = known
            known = longer
        np.maximum.at(known, numbers, part.end_ns[own])
        ends[stream] = known


def _warm_up_end_ns(ends: dict[int, Integers], start_ns: int) -> int:
    moments = []
    for known in ends.values():
        own = known[known != _NEVER]
        if warm_up := len(own) // WARM_UP_SHARE:
            moments.append(int(own[:warm_up].max()))
    return max(moments, default=start_ns)


def causal_bound(accesses: Sequence[Access], num_stages: int) -> float:
    """Return the lowest bubble ratio that any schedule of these measured accesses can have.

    It is 1 - min(1, work / (stages x longest chain)). In a chain, a subnet's blocks follow one
    another forward, then backward; a WRITE follows its backward and the layer's previous WRITE; a
    READ follows the WRITE of the version it read (for exact layers, that of the previous user).
    Work is the time of all F, B and W records, warm-up included.
    """
    passes: dict[tuple[StreamId, SequenceId], list[Access]] = defaultdict(list)
    for access in accesses:
        passes[access.layer.stream, access.sequence_id].append(access)
    written: dict[tuple[LayerId, Version], int] = {}
    newest: dict[LayerId, int] = {}
    longest_ns = 0
    for key in sorted(passes, key=lambda key: (key[1], key[0])):
        records = sorted(passes[key], key=_chain_key)
        clock_ns = 0
        ends: dict[LayerId, int] = {}  # earliest end of each layer's last backward of the pass
        for access in records:
            if access.kind is AccessKind.WRITE:
                continue
            if access.kind is AccessKind.FORWARD and access.version != INITIAL:
                clock_ns = max(clock_ns, written.get((access.layer, access.version), 0))
            clock_ns += access.end_ns - access.start_ns
            if access.kind is AccessKind.BACKWARD:
                ends[access.layer] = max(ends.get(access.layer, 0), clock_ns)
        longest_ns = max(longest_ns, clock_ns)
        for access in passes[key]:
            if access.kind is AccessKind.WRITE:
                start_ns = max(ends.get(access.layer, 0), newest.get(access.layer, 0))
                end_ns = start_ns + access.end_ns - access.start_ns
                newest[access.layer] = written[access.layer, access.version] = end_ns
                longest_ns = max(longest_ns, end_ns)
    work_ns = sum(access.end_ns - access.start_ns for access in accesses)
    return 1 - min(1.0, work_ns / (num_stages * longest_ns)) if longest_ns else 0.0


def _chain_key(access: Access) -> tuple[bool, int, int]:
    """Sort by rising blocks forward, then by falling blocks backward."""
    is_forward = access.kind is AccessKind.FORWARD
    block = access.layer.block
    return (not is_forward, block if is_forward else -block, access.start_ns)
