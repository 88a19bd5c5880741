"""The numbers of :mod:`naspipe.trace.reading.metrics` of a log of any length, read part by part.

What is held of a pass is the time of its last record: 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from naspipe.trace.access.columns import WRITE, AccessColumns, Integers
from naspipe.trace.reading.metrics import WARM_UP_SHARE, Summary, stages_seen

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
