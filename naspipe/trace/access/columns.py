"""Accesses in columns: arrays of numbers, for logs too long to hold a tuple for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId, Version

KINDS = tuple(AccessKind)
"""A kind is its place here: 0 for a forward, 1 for a backward, 2 for a WRITE."""
FORWARD, BACKWARD, WRITE = range(3)
_PLACES = {kind: place for place, kind in enumerate(KINDS)}

Integers = NDArray[np.int64]
Small = NDArray[np.int32]
Rows = NDArray[np.intp] | NDArray[np.bool_] | slice


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessColumns:
    """A column for each field of :class:`Access`, all of one length; times in nanoseconds."""

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
    """Empty where no record has one."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Rows) -> AccessColumns:
        """These rows."""
        digest: tuple[str, ...] = ()
        if self.digest:
            digest = tuple(self.digest[row] for row in np.arange(len(self))[rows].tolist())
        return AccessColumns(
            digest=digest if any(digest) else (),
            **{name: getattr(self, name)[rows] for name in NUMBERS},
        )

    def by_time(self) -> AccessColumns:
        """In order of start time; ties go as in :func:`naspipe.trace.access.log.time_key`."""
        order = np.argsort(self.start_ns, kind="stable")
        starts = self.start_ns[order]
        if (starts[1:] > starts[:-1]).all():
            return self.take(order)
        return self.take(
            np.lexsort(
                (
                    self.candidate, self.block, self.sequence_id, self.stream, self.kind,
                    self.end_ns, self.start_ns,
                )
            )
        )  # fmt: skip

    def moved(self, shift_ns: int) -> AccessColumns:
        """All times later by so much."""
        if not shift_ns:
            return self
        return replace(self, start_ns=self.start_ns + shift_ns, end_ns=self.end_ns + shift_ns)

    def by_layer(self) -> dict[LayerId, AccessColumns]:
        """The rows of each layer in chain order, each in the order in which they are here."""
        order = np.lexsort((self.candidate, self.block, self.stream))
        sorted_ = self.take(order)
        changes = np.zeros(len(order), np.bool_)
        for column in (sorted_.stream, sorted_.block, sorted_.candidate):
            changes[1:] |= np.diff(column) != 0
        edges = [0, *np.flatnonzero(changes).tolist(), len(order)]
        found = {}
        for begin, end in pairwise(edges):
            if begin < end:
                stream, block = StreamId(int(sorted_.stream[begin])), int(sorted_.block[begin])
                layer = LayerId(stream, block, int(sorted_.candidate[begin]))
                found[layer] = sorted_.take(slice(begin, end))
        return found

    def accesses(self) -> Iterator[Access]:
        """A tuple for each row."""
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
_DTYPES = {"stream": np.int32, "block": np.int32, "candidate": np.int32, "stage": np.int32} | {
    "kind": np.int8
}


def from_accesses(accesses: Sequence[Access]) -> AccessColumns:
    """Columns of these records, in their order."""
    rows = [
        (*layer, y, _PLACES[kind], v, stage, start, end, stalled, owed)
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
    """One behind another."""
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
