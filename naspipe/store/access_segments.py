"""A segment of the access log: a few thousand records of one stage in columns, after a head.

The head lists the number of records, the attempt, and the range of layers, subnets and times, so
that a reader of one layer, or of some subnets, can skip segments. The body is an array of packed
columns. Each column holds the value itself, or its difference from a predicted value:

    subnet   minus the previous record's  layer    index in the head's list
    kind     value                        stage    value
    version  of a WRITE minus its subnet; otherwise minus that of the layer's previous record
    start    minus the previous end       length   end - start
    stalled  value                        digest   absent, or one for each record

A tenth column has the time that each WRITE spent on weight gradients deferred by split backwards.
It is only present if a WRITE has such time.

Head and body are msgpack, in one framed record (:mod:`naspipe.store.frames`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, LayerId
from naspipe.store.access_columns import (
    BACKWARD,
    KINDS,
    WRITE,
    AccessColumns,
    Integers,
    from_accesses,
)
from naspipe.store.frames import headed, read_headed
from naspipe.store.tables import pack_numbers, unpack_numbers

MAGIC = b"NASPIPEA"
SCHEMA_VERSION = 4
MOST_RECORDS = 1 << 16
"""Maximum number of records of a segment, so that a damaged head cannot request much memory."""

_COLUMNS = 9
_INVALID = (ValueError, TypeError, KeyError, OverflowError, msgpack.exceptions.UnpackException)


class Head(NamedTuple):
    """Summary of the contents of a segment.

    ``generation`` is the attempt of the run: 0, plus one for every resume. ``subnets`` has a row
    (stream, first and last sequence ID) for each stream; ``layers`` has a row (stream, block,
    candidate, number of records) for each layer. Times are nanoseconds of the stage's clock.
    """

    records: int
    generation: int
    subnets: tuple[tuple[int, int, int], ...]
    layers: Integers
    start_ns: int
    end_ns: int


def encode_segment(accesses: Sequence[Access], generation: int) -> bytes:
    """Encode ``accesses``, which must not be empty, as the payload of one framed record."""
    return headed(*segment_parts(accesses, generation))


def segment_parts(accesses: Sequence[Access], generation: int) -> tuple[bytes, bytes]:
    """Return the head and the body of a segment."""
    columns = from_accesses(accesses)
    counts = sorted(Counter(access.layer for access in accesses).items())
    numbers = {layer: place for place, (layer, _) in enumerate(counts)}
    places = np.array([numbers[access.layer] for access in accesses], np.int64)
    layers = np.array([(*layer, count) for layer, count in counts], np.int64)
    subnets = []
    for stream in sorted(set(columns.stream.tolist())):
        own = columns.sequence_id[columns.stream == stream]
        subnets.append((stream, int(own.min()), int(own.max())))
    head = [
        len(columns),
        generation,
        subnets,
        len(layers),
        [pack_numbers(_steps(column)) for column in layers.T],
        int(columns.start_ns.min()),
        int(columns.end_ns.max()),
    ]
    ends_before = np.concatenate([[0], columns.end_ns[:-1]])
    body = [
        pack_numbers(_steps(columns.sequence_id)),
        pack_numbers(places),
        pack_numbers(columns.kind.astype(np.int64)),
        pack_numbers(_version_steps(columns, places)),
        pack_numbers(columns.stage.astype(np.int64)),
        pack_numbers(columns.start_ns - ends_before),
        pack_numbers(columns.end_ns - columns.start_ns),
        pack_numbers(columns.stalled_ns),
        list(map(_packed_digest, columns.digest)) or None,
    ]
    if columns.owed_ns.any():
        body.append(pack_numbers(columns.owed_ns))
    return msgpack.packb(head), msgpack.packb(body)


def decode_head(packed: bytes) -> Head:
    """Decode the head of a segment; LogError if it is not of this schema."""
    try:
        count, generation, subnets, num_layers, columns, start_ns, end_ns = msgpack.unpackb(packed)
        if not all(map(_is_whole, (count, generation, num_layers, start_ns, end_ns))):
            raise TypeError
        if not 0 < num_layers <= count <= MOST_RECORDS or len(columns) != 4:
            raise ValueError
        found = tuple((stream, first, last) for stream, first, last in subnets)
        if not all(_is_whole(number) for each in found for number in each):
            raise TypeError
        layers = np.stack([np.cumsum(unpack_numbers(c, num_layers)) for c in columns], axis=1)
        _check_range(layers[:, 3], 1, count + 1)
        if int(layers[:, 3].sum()) != count:
            raise ValueError
        _check_range(layers[:, :3], -(1 << 31), 1 << 31)
    except _INVALID as error:
        raise LogError(f"expected the head of a segment, found {packed!r:.200}") from error
    return Head(count, generation, found, layers, start_ns, end_ns)


def decode_body(
    packed: bytes, head: Head, wanted: NDArray[np.bool_] | None = None
) -> AccessColumns:
    """Decode the records in the order written; ``wanted`` selects some of the head's layers.

    Raises:
        LogError: if this is not a body of this schema and head.
    """
    try:
        columns = msgpack.unpackb(packed)
        if type(columns) is not list or len(columns) not in (_COLUMNS, _COLUMNS + 1):
            raise ValueError
        *numbers, digests = columns[:_COLUMNS]
        owed = [unpack_numbers(each, head.records) for each in columns[_COLUMNS:]]
        steps, places, kinds, versions, stages, gaps, lengths, stalled = (
            unpack_numbers(each, head.records) for each in numbers
        )
        _check_range(places, 0, len(head.layers))
        _check_range(kinds, 0, len(KINDS))
        _check_range(stages, -(1 << 31), 1 << 31)
        subnets = np.cumsum(steps)
        end_ns = np.cumsum(gaps + lengths)
        layers = head.layers[places].astype(np.int32)
        found = AccessColumns(
            stream=layers[:, 0],
            block=layers[:, 1],
            candidate=layers[:, 2],
            sequence_id=subnets,
            kind=kinds.astype(np.int8),
            version=_versions(versions, subnets, kinds, places),
            stage=stages.astype(np.int32),
            start_ns=end_ns - lengths,
            end_ns=end_ns,
            stalled_ns=stalled,
            owed_ns=owed[0] if owed else np.zeros(head.records, np.int64),
            digest=_digests(digests, head.records),
        )
        return found if wanted is None or wanted.all() else found.take(wanted[places])
    except _INVALID as error:
        raise LogError(
            f"expected the columns of {head.records} accesses, found {packed!r:.200}"
        ) from error


def _steps(numbers: Integers) -> Integers:
    """Return the first number, followed by the differences of consecutive numbers."""
    return np.diff(numbers, prepend=np.int64(0))


def _in_groups(places: Integers) -> tuple[Integers, Integers]:
    """Return rows sorted by layer (stable), and where each layer begins among them."""
    order = np.argsort(places, kind="stable")
    return order, np.flatnonzero(np.diff(places[order], prepend=np.int64(-1)))


def _version_steps(columns: AccessColumns, places: Integers) -> Integers:
    order, begins = _in_groups(places)
    versions = columns.version[order]
    steps = _steps(versions)
    steps[begins] = versions[begins]
    is_write = columns.kind[order] == WRITE
    steps[is_write] = (versions - columns.sequence_id[order])[is_write]
    found = np.empty_like(steps)
    found[order] = steps
    return found


def _versions(steps: Integers, subnets: Integers, kinds: Integers, places: Integers) -> Integers:
    """Invert :func:`_version_steps`."""
    order, begins = _in_groups(places)
    steps = steps[order]
    is_write = kinds[order] == WRITE
    is_known = is_write.copy()
    is_known[begins] = True
    known = np.where(is_write, steps + subnets[order], steps)
    # Between known versions, differences add up: take a running sum minus that at the last known.
    sums = np.cumsum(np.where(is_known, 0, steps))
    last = np.maximum.accumulate(np.where(is_known, np.arange(len(steps)), 0))
    found = np.empty_like(steps)
    found[order] = known[last] + sums - sums[last]
    return found


def _packed_digest(digest: str) -> bytes | str:
    """Return the bytes of a hexadecimal digest; any other digest is returned unchanged."""
    try:
        packed = bytes.fromhex(digest)
    except ValueError:
        return digest
    return packed if packed.hex() == digest else digest


def _digests(packed: Any, count: int) -> tuple[str, ...]:
    if packed is None:
        return ()
    found = tuple(each.hex() if type(each) is bytes else each for each in packed)
    if len(found) != count or not all(type(each) is str for each in found):
        raise ValueError
    return found


def _check_range(numbers: Integers, first: int, end: int) -> None:
    if int(numbers.min()) < first or int(numbers.max()) >= end:
        raise ValueError


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


class Wanted(NamedTuple):
    """Selects the records of a log to read; all by default.

    ``end`` is exclusive. ``every`` keeps every Nth step, of ``passes`` sequence IDs each.
    """

    layers: frozenset[LayerId] | None = None
    first: int = 0
    end: int | None = None
    backwards: bool = True
    every: int = 1
    passes: int = 1
    generation: int | None = None

    def has(self, head: Head) -> bool:
        """Return True if a segment may hold wanted records."""
        if self.generation not in (None, head.generation):
            return False
        return any(
            last >= self.first and (self.end is None or first < self.end)
            for _, first, last in head.subnets
        ) and bool(self.among(head.layers).any())

    def among(self, layers: Integers) -> NDArray[np.bool_]:
        """Return a mask of the rows (stream, block, candidate, ...) that are wanted layers."""
        if self.layers is None:
            return np.ones(len(layers), np.bool_)
        return np.array([LayerId(*row[:3]) in self.layers for row in layers.tolist()], np.bool_)

    def of(self, columns: AccessColumns) -> AccessColumns:
        """Return the rows of wanted subnets and kinds."""
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
    """Yield the head of each segment; see :func:`read_columns` for errors."""
    for head, _ in _segments(path, None):
        yield head


def read_columns(path: Path, wanted: Wanted = EVERYTHING) -> Iterator[tuple[int, AccessColumns]]:
    """Yield attempt and records of each segment with wanted records, in the order written.

    Raises:
        LogError: if a segment before the file's torn tail is damaged, or of another schema.
    """
    for head, columns in _segments(path, wanted):
        if columns is not None:
            yield head.generation, columns


def _segments(path: Path, wanted: Wanted | None) -> Iterator[tuple[Head, AccessColumns | None]]:
    """Yield each segment's head with its wanted records; others are not decoded."""
    heads: list[Head] = []

    def wants(packed: bytes) -> bool:
        heads.append(decode_head(packed))
        return wanted is not None and wanted.has(heads[-1])

    count = 0
    try:
        for _, body in read_headed(path, MAGIC, SCHEMA_VERSION, wants):
            head, columns = heads.pop(), None
            if wanted is not None and body is not None:
                own = None if wanted.layers is None else wanted.among(head.layers)
                columns = wanted.of(decode_body(body, head, own))
            yield head, columns
            count += 1
    except LogError as error:
        if str(error).startswith(str(path)):
            raise
        raise LogError(f"{path}, segment {count}: {error}") from error
