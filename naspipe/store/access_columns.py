"""Accesses in columns: arrays of numbers, for logs too long to hold a tuple for each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

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
        """In order of start time; ties go as in :func:`naspipe.store.access_log.time_key`."""
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


Firsts = Mapping[int, int]
"""By stream, its first sequence ID."""


class Life(NamedTuple):
    """When one generation of a run was, on the clock on which all are laid end to end."""

    generation: int
    start_ns: int
    end_ns: int
    """Of what the result rests on: what was done again later has no time."""
    shift_ns: int

    def place(self, time_ns: int) -> int:
        """Where a time of its own clock is, at most at its edges."""
        return min(max(time_ns + self.shift_ns, self.start_ns), self.end_ns)


def lowest(firsts: Iterable[Firsts]) -> Firsts:
    """Of each stream, the least of all."""
    found: dict[int, int] = {}
    for each in firsts:
        for stream, first in each.items():
            found[stream] = min(first, found.get(stream, first))
    return found


def without_redone(
    by_generation: Mapping[int, AccessColumns], firsts: Mapping[int, Firsts]
) -> dict[int, AccessColumns]:
    """Drop what a later generation did again: all subnets from its first one onwards.

    Args:
        by_generation: records, all or some.
        firsts: of each generation, of all its records.
    """
    kept = {}
    for generation, columns in sorted(by_generation.items()):
        limits = lowest(own for later, own in sorted(firsts.items()) if later > generation)
        redone = np.zeros(len(columns), np.bool_)
        for stream, first in limits.items():
            redone |= (columns.stream == stream) & (columns.sequence_id >= first)
        kept[generation] = columns.take(~redone) if redone.any() else columns
    return kept


def laid_end_to_end(
    runs: Sequence[Mapping[int, AccessColumns]], in_order: bool = True
) -> tuple[list[AccessColumns], list[Life]]:
    """The generations of each run, one after another, at the same time in all runs.

    Each is in order of time then, unless nobody needs it to be.
    """
    lives: list[Life] = []
    results: list[list[AccessColumns]] = [[] for _ in runs]
    end = None
    for generation in sorted({each for run in runs for each in run}):
        parts = [run[generation] if generation in run else joined(()) for run in runs]
        known = [part for part in parts if len(part)]
        if not known:
            continue
        start = min(int(part.start_ns.min()) for part in known)
        shift = 0 if end is None else end - start
        for result, part in zip(results, parts, strict=True):
            moved = part.moved(shift)
            result.append(moved.by_time() if in_order else moved)
        end = max(int(part.end_ns.max()) for part in known) + shift
        lives.append(Life(generation, start + shift, end, shift))
    return [joined(result) for result in results], lives
