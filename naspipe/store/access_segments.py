"""A segment of the access log: some thousand records of one stage in columns, behind a head.

The head says what is inside: how many records, of which life, layers, subnets and times. So a
reader of one layer, or of some subnets, passes by what it does not need. The body is an array of
packed columns, each a difference to what is most likely:

    subnet   to the record before        layer    its place in the head's list
    kind     as it is                    stage    as it is
    version  of a WRITE to its subnet; of others to the layer's record before
    start    to the end before           length   end - start
    stalled  as it is                    digest   absent, or one for each record

A tenth column says how much of each WRITE went to gradients that split backwards had left. It is
there only where one did.

Both are msgpack, in one framed record (:mod:`naspipe.store.frames`).
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
from naspipe.store.frames import headed, read_headed, read_heads
from naspipe.store.tables import pack_numbers, unpack_numbers

MAGIC = b"NASPIPEA"
SCHEMA_VERSION = 4
"""Both stand at the beginning of a file of segments."""
MOST_RECORDS = 1 << 16
"""No segment holds more, so a damaged head can never ask for much memory."""

_COLUMNS = 9
_INVALID = (ValueError, TypeError, KeyError, OverflowError, msgpack.exceptions.UnpackException)


class Head(NamedTuple):
    """What a segment holds; times in nanoseconds of the stage's clock."""

    records: int
    generation: int
    """Life of the run that wrote it: 0, then one more for every resume."""
    subnets: tuple[tuple[int, int, int], ...]
    """Of each stream: its number, its first and its last sequence ID."""
    layers: Integers
    """A row for each layer: stream, block, candidate, number of records."""
    start_ns: int
    end_ns: int


def encode_segment(accesses: Sequence[Access], generation: int) -> bytes:
    """The payload of one framed record, of at least one access."""
    return headed(*segment_parts(accesses, generation))


def segment_parts(accesses: Sequence[Access], generation: int) -> tuple[bytes, bytes]:
    """Its head and its body."""
    columns = from_accesses(accesses)
    found = _head_of(columns, generation)
    numbers = {tuple(row): place for place, row in enumerate(found.layers[:, :3].tolist())}
    places = np.array([numbers[access.layer] for access in accesses], np.int64)
    count, _, subnets, layers, start_ns, end_ns = found
    packed_layers = [pack_numbers(_steps(column)) for column in layers.T]
    head = [count, generation, subnets, len(layers), packed_layers, start_ns, end_ns]
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


def _head_of(columns: AccessColumns, generation: int) -> Head:
    """What these records are, of which there is at least one."""
    of_layer = (columns.stream, columns.block, columns.candidate)
    layers = Counter(zip(*(column.tolist() for column in of_layer), strict=True))
    subnets = []
    for stream in sorted(set(columns.stream.tolist())):
        own = columns.sequence_id[columns.stream == stream]
        subnets.append((stream, int(own.min()), int(own.max())))
    return Head(
        len(columns),
        generation,
        tuple(subnets),
        np.array([(*layer, count) for layer, count in sorted(layers.items())], np.int64),
        int(columns.start_ns.min()),
        int(columns.end_ns.max()),
    )


def decode_head(packed: bytes) -> Head:
    """What is inside.

    Raises:
        LogError: when it is no head of this schema.
    """
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
    """The records, in the order written; of the head's layers those that are wanted, None for all.

    Raises:
        LogError: when it is no body of this schema and head.
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
    """The first, then each number's difference to the one before."""
    return np.diff(numbers, prepend=np.int64(0))


def _in_groups(places: Integers) -> tuple[Integers, Integers]:
    """Rows sorted by layer, in each in the order written, and where each layer begins there."""
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
    """What :func:`_version_steps` was made of."""
    order, begins = _in_groups(places)
    steps = steps[order]
    is_write = kinds[order] == WRITE
    is_known = is_write.copy()
    is_known[begins] = True
    known = np.where(is_write, steps + subnets[order], steps)
    # between known versions, differences add up: a running sum, less the sum at the last known one
    sums = np.cumsum(np.where(is_known, 0, steps))
    last = np.maximum.accumulate(np.where(is_known, np.arange(len(steps)), 0))
    found = np.empty_like(steps)
    found[order] = known[last] + sums - sums[last]
    return found


def _packed_digest(digest: str) -> bytes | str:
    """Half as long, where it is hex."""
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
