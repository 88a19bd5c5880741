"""One stage's file of accesses: its segments, of which a reader gets those that it wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from naspipe.config.errors import LogError
from naspipe.config.ids import LayerId
from naspipe.trace.access.columns import BACKWARD, AccessColumns, Integers
from naspipe.trace.access.segments import (
    MAGIC,
    SCHEMA_VERSION,
    Head,
    decode_body,
    decode_head,
)
from naspipe.trace.storage.headed_frames import read_headed, read_heads


class Wanted(NamedTuple):
    """What to read of a log; all of it, unless it says otherwise."""

    layers: frozenset[LayerId] | None = None
    first: int = 0
    """The first subnet."""
    end: int | None = None
    """Behind the last one."""
    backwards: bool = True
    """Whether backwards are wanted, too: they have no place in an access order."""

    every: int = 1
    """Each so manyth step only."""
    passes: int = 1
    """Of a step."""
    generation: int | None = None
    """Life of the run; None for all."""

    def has(self, head: Head) -> bool:
        """Whether any record of a segment may be wanted."""
        if self.generation not in (None, head.generation):
            return False
        is_near = any(
            last >= self.first and (self.end is None or first < self.end)
            for _, first, last in head.subnets
        )
        if self.layers is None or not is_near:
            return is_near
        return bool(self.among(head.layers).any())

    def among(self, layers: Integers) -> NDArray[np.bool_]:
        """Which of these rows of stream, block, candidate, ... are wanted layers."""
        if self.layers is None:
            return np.ones(len(layers), np.bool_)
        return np.array([LayerId(*row[:3]) in self.layers for row in layers.tolist()], np.bool_)

    def of(self, columns: AccessColumns) -> AccessColumns:
        """The rows of wanted subnets and kinds."""
        if not self.first and self.end is None and self.backwards and self.every == 1:
            return columns
        rows = columns.sequence_id >= self.first
        if self.end is not None:
            rows &= columns.sequence_id < self.end
        if self.every > 1:
            rows &= columns.sequence_id // self.passes % self.every == 0
        if not self.backwards:
            rows &= columns.kind != BACKWARD
        return columns if rows.all() else columns.take(rows)


EVERYTHING = Wanted()


def iterate_heads(path: Path) -> Iterator[Head]:
    """What each segment of a file holds.

    Raises:
        LogError: when the file is damaged before its tail, or is of another schema.
    """
    count = 0
    try:
        for packed in read_heads(path, MAGIC, SCHEMA_VERSION):
            yield decode_head(packed)
            count += 1
    except LogError as error:
        raise _named(path, count, error) from error


def read_columns(path: Path, wanted: Wanted = EVERYTHING) -> Iterator[tuple[int, AccessColumns]]:
    """Life and records of each segment that has any that are wanted, in the order written.

    Raises:
        LogError: when what is read is damaged, and is not the file's torn tail; or when the file is
            of another schema.
    """
    count = 0
    last: Head | None = None

    def wants(packed: bytes) -> bool:
        nonlocal count, last
        last = decode_head(packed)
        count += 1
        return wanted.has(last)

    try:
        for _, body in read_headed(path, MAGIC, SCHEMA_VERSION, wants):
            if last is not None:
                own = None if wanted.layers is None else wanted.among(last.layers)
                yield last.generation, wanted.of(decode_body(body, last, own))
    except LogError as error:
        raise _named(path, count, error) from error


def _named(path: Path, number: int, error: LogError) -> LogError:
    """Say of a segment that cannot be read which one it is."""
    is_named = str(error).startswith(str(path))
    return error if is_named else LogError(f"{path}, segment {number}: {error}")
