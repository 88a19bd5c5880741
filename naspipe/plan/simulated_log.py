"""A compact access log: rows of whole numbers, a fifth of what tuples of objects take."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId, Version
from naspipe.store.metrics import WARM_UP_SHARE, Summary

_KINDS = tuple(AccessKind)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
COLUMNS = (
    "stream", "block", "candidate", "sequence_id", "kind", "version", "stage",
    "start_ns", "end_ns", "stalled_ns",
)  # fmt: skip
"""The cells of a row; a kind is its place in :class:`AccessKind`."""

Integers = NDArray[np.int64]


class AccessTable(Sequence[Access]):
    """Accesses in the order in which they were appended; digests and ``owed_ns`` are not kept.

    Reads as a sequence of :class:`Access`; :meth:`column` has all of one field for numpy.
    """

    def __init__(self) -> None:
        self._cells = array("q")

    def append(self, access: Access) -> None:
        layer, sequence_id, kind, version, stage, start_ns, end_ns, stalled_ns, *_ = access
        self._cells.extend(
            (
                *layer, sequence_id, _NUMBERS[kind], version, stage, start_ns, end_ns,
                stalled_ns,
            )
        )  # fmt: skip

    def column(self, name: str) -> Integers:
        """One field of every row; a copy, so that more rows can be appended."""
        return self._matrix()[:, COLUMNS.index(name)].copy()

    def of_stage(self, stage: int) -> Iterator[Access]:
        for row in np.flatnonzero(self._matrix()[:, COLUMNS.index("stage")] == stage).tolist():
            yield self[row]

    def __len__(self) -> int:
        return len(self._cells) // len(COLUMNS)

    @overload
    def __getitem__(self, row: int) -> Access: ...

    @overload
    def __getitem__(self, row: slice) -> list[Access]: ...

    def __getitem__(self, row: int | slice) -> Access | list[Access]:
        if isinstance(row, slice):
            return [self._access(number) for number in range(*row.indices(len(self)))]
        number = row + len(self) if row < 0 else row
        if not 0 <= number < len(self):
            raise IndexError(row)
        return self._access(number)

    def __iter__(self) -> Iterator[Access]:
        return map(self._access, range(len(self)))

    def _access(self, row: int) -> Access:
        width = len(COLUMNS)
        cells = self._cells[row * width : (row + 1) * width].tolist()
        stream, block, candidate, sequence_id, kind, version, stage, *times = cells
        start_ns, end_ns, stalled_ns = times
        return Access(
            LayerId(StreamId(stream), block, candidate),
            SequenceId(sequence_id),
            _KINDS[kind],
            Version(version),
            StageId(stage),
            start_ns,
            end_ns,
            stalled_ns,
        )

    def _matrix(self) -> NDArray[Any]:
        cells = np.frombuffer(self._cells, dtype=np.int64) if self._cells else np.empty(0, np.int64)
        return cells.reshape(-1, len(COLUMNS))


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
