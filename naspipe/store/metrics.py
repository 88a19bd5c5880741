"""Numbers of a run, from its access log alone and the same for the runtime and the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, SequenceId, StreamId, Version
from naspipe.store.access_columns import WRITE, AccessColumns, Integers, from_accesses

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


Log = Sequence[Access] | AccessColumns
"""Records in any order."""


def as_columns(accesses: Log) -> AccessColumns:
    """The same in columns."""
    return accesses if isinstance(accesses, AccessColumns) else from_accesses(accesses)


def summarize(accesses: Log, num_stages: int) -> Summary:
    """Every number of :class:`Summary`; all are 0 for an empty log, the hit rate then 1.

    A run that was resumed on fewer stages counts as one of as many as left records.
    """
    columns = as_columns(accesses)
    num_stages = max(num_stages, stages_seen(columns))
    return Summary(
        len(_last_ends(columns)[0]),
        makespan_seconds(columns),
        passes_per_second(columns),
        bubble_ratio(columns, num_stages),
        hit_rate(columns),
        stall_ratio(columns, num_stages),
    )


def stages_seen(columns: AccessColumns) -> int:
    """How many stages there must have been."""
    return int(columns.stage.max(initial=-1)) + 1


def makespan_seconds(accesses: Log) -> float:
    """From the start of the first record to the end of the last."""
    columns = as_columns(accesses)
    if not len(columns):
        return 0.0
    return (int(columns.end_ns.max()) - int(columns.start_ns.min())) / 1e9


def passes_per_second(accesses: Log) -> float:
    """Passes of all streams over the makespan, warm-up included."""
    columns = as_columns(accesses)
    seconds = makespan_seconds(columns)
    return len(_last_ends(columns)[0]) / seconds if seconds else 0.0


def hit_rate(accesses: Log) -> float:
    """The share of forwards and backwards whose layer was on the device when they could begin.

    WRITEs do not count: each follows its backward at once (NASPipe, Table 2: "cache hit").
    """
    columns = as_columns(accesses)
    hits = columns.stalled_ns[columns.kind != WRITE] == 0
    return int(hits.sum()) / len(hits) if len(hits) else 1.0


def stall_ratio(accesses: Log, num_stages: int) -> float:
    """Time that stages waited for loads / (stages x makespan), after the warm-up."""
    columns = as_columns(accesses)
    start = warm_up_end_ns(columns)
    if start is None:
        return 0.0
    end = int(columns.end_ns.max())
    counts = (columns.stalled_ns != 0) & (columns.start_ns > start)
    stalled = np.minimum(columns.stalled_ns[counts], columns.start_ns[counts] - start).sum()
    return int(stalled) / (num_stages * (end - start)) if end > start else 0.0


def bubble_ratio(accesses: Log, num_stages: int) -> float:
    """1 - busy time / (stages x makespan), after the warm-up.

    Busy is the time that F, B and W records cover on their stage. The warm-up ends when the
    first tenth of the subnets (by sequence ID, rounded down) is completely written; records
    that reach across that moment count from there on. 0 for an empty log.
    """
    columns = as_columns(accesses)
    start = warm_up_end_ns(columns)
    if start is None:
        return 0.0
    end, busy = int(columns.end_ns.max()), 0
    for stage in np.unique(columns.stage).tolist():
        rows = (columns.stage == stage) & (columns.end_ns > start)
        busy += _covered(columns.start_ns[rows].clip(min=start), columns.end_ns[rows])
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


def _last_ends(columns: AccessColumns) -> tuple[Integers, Integers]:
    """Of each pass, by stream and sequence ID: its stream, and when its last record ended."""
    order = np.lexsort((columns.sequence_id, columns.stream))
    streams, passes = columns.stream[order], columns.sequence_id[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(streams) != 0) | (np.diff(passes) != 0)
    begins = np.flatnonzero(is_first)
    if not len(begins):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return streams[begins].astype(np.int64), np.maximum.reduceat(columns.end_ns[order], begins)


def warm_up_end_ns(accesses: Log) -> int | None:
    """The moment from which numbers count; None for an empty log."""
    columns = as_columns(accesses)
    if not len(columns):
        return None
    streams, ends = _last_ends(columns)
    moments = []
    for stream in np.unique(streams).tolist():
        own = ends[streams == stream]
        if warm_up := len(own) // WARM_UP_SHARE:
            moments.append(int(own[:warm_up].max()))
    return max(moments, default=int(columns.start_ns.min()))


def _covered(starts: Integers, ends: Integers) -> int:
    """Length of the union of intervals."""
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([starts[:1], reached[:-1]])
    return int((ends - np.maximum(starts, before)).clip(min=0).sum())


Parts = Callable[[], Iterator[AccessColumns]]
"""A log from its begin to its end in order of time, as often as it is asked for."""

_NEVER = np.iinfo(np.int64).min


def summarize_parts(parts: Parts, num_stages: int) -> Summary:
    """Every number of :class:`Summary`; the log is read twice.

    Raises:
        LogError: when it is damaged.
    """
    whole = _Whole()
    for part in parts():
        whole.take(part)
    if not whole.records:
        return Summary(0, 0.0, 0.0, 0.0, 1.0, 0.0)
    busy = _Busy(whole.warm_up_end_ns)
    for part in parts():
        busy.take(part)
    seconds = (whole.end_ns - whole.start_ns) / 1e9
    stages_ns = max(num_stages, whole.stages) * (whole.end_ns - busy.start_ns)
    passes = sum(int((ends != _NEVER).sum()) for ends in whole.ends.values())
    return Summary(
        passes,
        seconds,
        passes / seconds if seconds else 0.0,
        1 - busy.busy_ns / stages_ns if stages_ns > 0 else 0.0,
        whole.hits / whole.reads if whole.reads else 1.0,
        busy.stalled_ns / stages_ns if stages_ns > 0 else 0.0,
    )


@dataclass(slots=True)
class _Whole:
    """What has to be known of all of a log before its warm-up is."""

    records: int = 0
    stages: int = 0
    start_ns: int = 0
    end_ns: int = 0
    reads: int = 0
    hits: int = 0
    ends: dict[int, Integers] = field(default_factory=dict)
    """Of each stream, by sequence ID: when the pass's last record ended."""

    def take(self, part: AccessColumns) -> None:
        is_read = part.kind != WRITE
        self.reads += int(is_read.sum())
        self.hits += int((part.stalled_ns[is_read] == 0).sum())
        if not self.records:
            self.start_ns = int(part.start_ns[0])
        self.records += len(part)
        self.stages = max(self.stages, stages_seen(part))
        self.end_ns = max(self.end_ns, int(part.end_ns.max()))
        for stream in np.unique(part.stream).tolist():
            own = part.stream == stream
            numbers = part.sequence_id[own]
            ends = self.ends.setdefault(stream, np.empty(0, np.int64))
            if (most := int(numbers.max()) + 1) > len(ends):
                longer = np.full(max(most, 2 * len(ends)), _NEVER)
                longer[: len(ends)] = ends
                self.ends[stream] = ends = longer
            np.maximum.at(ends, numbers, part.end_ns[own])

    @property
    def warm_up_end_ns(self) -> int:
        moments = []
        for ends in self.ends.values():
            own = ends[ends != _NEVER]
            if warm_up := len(own) // WARM_UP_SHARE:
                moments.append(int(own[:warm_up].max()))
        return max(moments, default=self.start_ns)


@dataclass(slots=True)
class _Busy:
    """What counts after the warm-up."""

    start_ns: int
    busy_ns: int = 0
    stalled_ns: int = 0
    reached: dict[int, int] = field(default_factory=dict)
    """Of each stage: until when its time is counted."""

    def take(self, part: AccessColumns) -> None:
        stalls = (part.stalled_ns != 0) & (part.start_ns > self.start_ns)
        since = part.start_ns[stalls] - self.start_ns
        self.stalled_ns += int(np.minimum(part.stalled_ns[stalls], since).sum())
        for stage in np.unique(part.stage).tolist():
            rows = (part.stage == stage) & (part.end_ns > self.start_ns)
            if rows.any():
                self._cover(stage, part.start_ns[rows], part.end_ns[rows])

    def _cover(self, stage: int, starts: Integers, ends: Integers) -> None:
        """Add the length of the union of intervals, which begin in order."""
        first = self.reached.get(stage, self.start_ns)
        reached = np.maximum(np.maximum.accumulate(ends), first)
        before = np.concatenate([[first], reached[:-1]])
        self.busy_ns += int((ends - np.maximum(starts, before)).clip(min=0).sum())
        self.reached[stage] = int(reached[-1])
