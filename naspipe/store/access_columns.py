"""Accesses as columns of numbers, for logs that are too long for a tuple per record.

A segment of the access log is decoded to such columns. This module also merges the records of
several attempts of a run into one log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId, Version

KINDS = tuple(AccessKind)
"""The column ``kind`` holds indices into this tuple."""
FORWARD, BACKWARD, WRITE = range(3)

Integers = NDArray[np.int64]
Small = NDArray[np.int32]
Rows = NDArray[np.intp] | NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessColumns:
    """A column for each field of :class:`Access`, all of equal length; times in nanoseconds."""

    stream: Small
    block: Small
    candidate: Small
    sequence_id: Integers
    kind: NDArray[np.int8]
    version: Integers
    stage: Small
    start_ns: Integers
    end_ns: Integers
    stalled_ns: Integers
    owed_ns: Integers
    digest: tuple[str, ...] = ()
    """Empty if no record has a digest."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Rows) -> AccessColumns:
        """Return these rows, in this order."""
        digest: tuple[str, ...] = ()
        if self.digest:
            digest = tuple(self.digest[row] for row in np.arange(len(self))[rows].tolist())
        return AccessColumns(
            digest=digest if any(digest) else (),
            **{name: getattr(self, name)[rows] for name in NUMBERS},
        )

    def by_time(self) -> AccessColumns:
        """Sort by start time; ties as in :func:`naspipe.store.access_log.time_key`."""
        order = np.argsort(self.start_ns, kind="stable")
        starts = self.start_ns[order]
        if not (starts[1:] > starts[:-1]).all():
            layer = (self.candidate, self.block)
            ties = (self.sequence_id, self.stream, self.kind, self.end_ns)
            order = np.lexsort((*layer, *ties, self.start_ns))
        return self.take(order)

    def moved(self, shift_ns: int) -> AccessColumns:
        """Add ``shift_ns`` to all times."""
        if not shift_ns:
            return self
        return replace(self, start_ns=self.start_ns + shift_ns, end_ns=self.end_ns + shift_ns)

    def by_layer(self) -> dict[LayerId, AccessColumns]:
        """Return the rows of each layer, layers in chain order, rows in their present order."""
        order = np.lexsort((self.candidate, self.block, self.stream))
        sorted_ = self.take(order)
        changes = np.zeros(len(order), np.bool_)
        for column in (sorted_.stream, sorted_.block, sorted_.candidate):
            changes[1:] |= np.diff(column) != 0
        found = {}
        for begin, end in pairwise([0, *np.flatnonzero(changes).tolist(), len(order)]):
            if begin < end:
                stream, block = StreamId(int(sorted_.stream[begin])), int(sorted_.block[begin])
                layer = LayerId(stream, block, int(sorted_.candidate[begin]))
                found[layer] = sorted_.take(slice(begin, end))
        return found

    def accesses(self) -> Iterator[Access]:
        """Yield a tuple for each row."""
        digests = self.digest or ("",) * len(self)
        columns = (getattr(self, name).tolist() for name in NUMBERS)
        for s, b, c, y, kind, v, stage, start, end, stalled, owed, digest in zip(
            *columns, digests, strict=True
        ):
            layer = LayerId(StreamId(s), b, c)
            yield Access(
                layer, SequenceId(y), KINDS[kind], Version(v), StageId(stage), start, end, stalled,
                digest, owed,
            )  # fmt: skip


NUMBERS = tuple(field.name for field in fields(AccessColumns) if field.name != "digest")
_DTYPES = {
    **dict.fromkeys(("stream", "block", "candidate", "stage"), np.int32),
    "kind": np.int8,
}


def from_accesses(accesses: Sequence[Access]) -> AccessColumns:
    """Convert records to columns, in the given order."""
    kinds = {kind: place for place, kind in enumerate(KINDS)}
    rows = [
        (*layer, y, kinds[kind], v, stage, start, end, stalled, owed)
        for layer, y, kind, v, stage, start, end, stalled, _, owed in accesses
    ]
    matrix = np.array(rows, np.int64).reshape(-1, len(NUMBERS))
    digests = tuple(access.digest for access in accesses)
    numbers: dict[str, Any] = {
        name: matrix[:, place].astype(_DTYPES.get(name, np.int64))
        for place, name in enumerate(NUMBERS)
    }
    return AccessColumns(digest=digests if any(digests) else (), **numbers)


def joined(parts: Sequence[AccessColumns]) -> AccessColumns:
    """Concatenate the parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return from_accesses(())
    digests: tuple[str, ...] = ()
    if any(part.digest for part in parts):
        digests = tuple(digest for part in parts for digest in part.digest or ("",) * len(part))
    return AccessColumns(
        digest=digests,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in NUMBERS},
    )


Firsts = Mapping[int, int]
"""The first sequence ID of each stream."""


class Life(NamedTuple):
    """When one attempt of a run took place, on a common clock where attempts follow one another.

    Work that a later attempt repeated takes no time on that clock. ``shift_ns`` is added to a time
    of the attempt's own clock to convert it.
    """

    generation: int
    start_ns: int
    end_ns: int
    shift_ns: int

    def place(self, time_ns: int) -> int:
        """Convert a time of the attempt's own clock, clamped to the attempt's edges."""
        return min(max(time_ns + self.shift_ns, self.start_ns), self.end_ns)


def lowest(firsts: Iterable[Firsts]) -> Firsts:
    """Return the lowest first sequence ID of each stream."""
    found: dict[int, int] = {}
    for each in firsts:
        for stream, first in each.items():
            found[stream] = min(first, found.get(stream, first))
    return found


def without_redone(
    columns: AccessColumns, generation: int, firsts: Mapping[int, Firsts]
) -> AccessColumns:
    """Drop from one attempt's records the subnets that later attempts trained again.

    An attempt repeats all subnets from its first one on. ``firsts`` maps each attempt to its first
    subnets.
    """
    redone = np.zeros(len(columns), np.bool_)
    limits = lowest(own for later, own in firsts.items() if later > generation)
    for stream, first in limits.items():
        redone |= (columns.stream == stream) & (columns.sequence_id >= first)
    return columns.take(~redone) if redone.any() else columns
