"""The numbers of a simulated run, as :mod:`naspipe.trace.reading.metrics` has them, by numpy.

A simulated stage does one thing at a time, so what its records cover is the sum of their times.
"""

from __future__ import annotations

import numpy as np

from naspipe.sim.access_table import AccessTable, Integers
from naspipe.trace.reading.metrics import WARM_UP_SHARE, Summary


def summarize_table(table: AccessTable, num_stages: int) -> Summary:
    """Every number of :class:`Summary`; for an empty log as ``summarize`` says."""
    if not len(table):
        return Summary(0, 0.0, 0.0, 0.0, 1.0, 0.0)
    start, end, stalled = map(table.column, ("start_ns", "end_ns", "stalled_ns"))
    streams, passes = table.column("stream"), table.column("sequence_id")
    last = int(end.max())
    seconds = (last - int(start.min())) / 1e9
    num_passes = len(np.unique(np.stack((streams, passes)), axis=1).T)
    reads = table.column("kind") != 2
    hit_rate = float((stalled[reads] == 0).mean()) if reads.any() else 1.0
    since = _warm_up_end(streams, passes, start, end)
    span = num_stages * (last - since)
    busy = int((end - np.maximum(start, since)).clip(min=0).sum())
    after = start > since
    stall = int(np.minimum(stalled[after], start[after] - since).sum())
    return Summary(
        num_passes,
        seconds,
        num_passes / seconds if seconds else 0.0,
        1 - busy / span if span > 0 else 0.0,
        hit_rate,
        stall / span if span > 0 else 0.0,
    )


def _warm_up_end(streams: Integers, passes: Integers, start: Integers, end: Integers) -> int:
    """When the first tenth of each stream's subnets is completely written."""
    moments = []
    for stream in np.unique(streams):
        mine = streams == stream
        own = passes[mine]
        numbers = np.unique(own)
        count = len(numbers) // WARM_UP_SHARE
        if count:
            moments.append(int(end[mine][own < numbers[count]].max()))
    return max(moments, default=int(start.min()))
