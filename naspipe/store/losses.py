"""The losses and metrics of a run: files of JSON lines whose older rows are rolled into tables.

A loss is written as a decimal for readers and as its exact bits for comparison. The newest rows are
lines; once a file has 2048 of them, the older half is moved to a table in the file with the same
name and the suffix ``.msgpack``, which takes a fraction of the space.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

from naspipe.config.errors import LogError
from naspipe.config.ids import FIRST_STREAM, SequenceId, StreamId
from naspipe.config.text import parse_json
from naspipe.store.files import atomic_file, write_whole, writing
from naspipe.store.frames import MAX_PAYLOAD_BYTES, FramedWriter, read_frames
from naspipe.store.tables import decode_table, encode_table

ROLLED = 1024
MAGIC = b"NPTABLES"
VERSION = 1

Row = Mapping[str, Any]


def tables_of(path: Path) -> Path:
    """Return the file with the rows that precede a file's lines."""
    return path.with_suffix(".msgpack")


class RolledLines:
    """Appends rows, each written without buffering.

    ``keeps`` selects the existing rows to keep; without it the file is truncated.

    Raises:
        OSError: if a file cannot be written.
        LogError: if existing rows cannot be read.
    """

    def __init__(self, path: Path, keeps: Callable[[Row], bool] | None = None) -> None:
        self._path = path
        self._tables: FramedWriter | None = None
        self._newest: list[bytes] = []
        tables = tables_of(path)
        if keeps is None:
            tables.unlink(missing_ok=True)
            self._file = path.open("wb", buffering=0)
            return
        rows = (row for place, row in read_rows(path) if place.row < 0)
        self._newest = [line_of(row) for row in rows if keeps(row)]
        if tables.exists():
            fresh = tables.with_name(f".{tables.name}.cut")
            fresh.unlink(missing_ok=True)
            with FramedWriter(fresh, MAGIC, VERSION) as writer:
                for table in _tables(tables):
                    if kept := [row for row in table if keeps(row)]:
                        _append(writer, kept)
                os.fsync(writer.fileno())
            fresh.replace(tables)
        self._replace()

    def append(self, row: Row) -> None:
        line = line_of(row)
        with writing(self._path, len(line)):
            write_whole(self._file, line)
        self._newest.append(line)
        if len(self._newest) < 2 * ROLLED:
            return
        if self._tables is None:
            self._tables = FramedWriter(tables_of(self._path), MAGIC, VERSION)
        older, self._newest = self._newest[:ROLLED], self._newest[ROLLED:]
        _append(self._tables, [parse_json(line) for line in older])
        os.fsync(self._tables.fileno())
        self._file.close()
        self._replace()

    def sync(self) -> None:
        """Flush all rows to disk with an fsync."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._file.close()
        if self._tables is not None:
            self._tables.close()

    def _replace(self) -> None:
        with atomic_file(self._path) as file:
            file.write(b"".join(self._newest))
        self._file = self._path.open("ab", buffering=0)


def line_of(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


class Place(NamedTuple):
    """Location of a row: a line, or a row of a table; ``row`` is -1 for a line."""

    path: Path
    number: int
    row: int = -1

    def __str__(self) -> str:
        if self.row < 0:
            return f"{self.path}:{self.number}"
        return f"{self.path}, table {self.number}, row {self.row}"


def read_rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every row and its location, in order; a torn last line is dropped.

    A line that is not a JSON object is yielded as an empty row, which the caller must handle. A
    damaged table raises LogError, a missing file of lines OSError.
    """
    last: deque[Row] = deque(maxlen=ROLLED)
    tables = tables_of(path)
    for number, rows in enumerate(_tables(tables)):
        for place, row in enumerate(rows):
            yield Place(tables, number, place), row
        last.extend(rows)
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            value = parse_json(line)
        except ValueError:
            value = {}
        found.append(value if isinstance(value, dict) else {})
    # If a process died between the two writes, the last rows of the tables are also lines.
    doubled = next((len(last) - n for n, row in enumerate(last) if found[:1] == [row]), 0)
    for number, row in enumerate(found[doubled:], doubled + 1):
        yield Place(path, number), row


def _append(tables: FramedWriter, rows: Sequence[Row]) -> None:
    """Append rows as one table, or as several if they are too long."""
    packed = encode_table(rows)
    if len(packed) > MAX_PAYLOAD_BYTES and len(rows) > 1:
        _append(tables, rows[: len(rows) // 2])
        _append(tables, rows[len(rows) // 2 :])
        return
    tables.append(packed)
    tables.flush()


def _tables(path: Path) -> Iterator[list[dict[str, Any]]]:
    if not path.exists():
        return
    for number, packed in enumerate(read_frames(path, MAGIC, VERSION)):
        try:
            yield decode_table(packed)
        except LogError as error:
            raise LogError(f"{path}, table {number}: {error}") from error


_MARKED = 1 << 14
"""Number of recent losses whose byte offsets are kept in memory, because checkpoints need them."""
_EMPTY = (0, 0)


class Number(NamedTuple):
    """A computed number; ``bits`` is the hex of its bytes, most significant first."""

    value: float
    bits: str


class Beside(NamedTuple):
    """Records of a pass in addition to its loss: a digest of its batch, and metrics by name.

    The digest is empty if the batch is unknown.
    """

    batch: str = ""
    metrics: tuple[tuple[str, Number], ...] = ()


NOTHING = Beside()


class Loss(NamedTuple):
    """The loss of one pass; ``bits`` as in :class:`Number`."""

    stream: StreamId
    sequence_id: SequenceId
    value: float
    bits: str
    beside: Beside = NOTHING


class LossWriter:
    """Writes losses in sequence order per stream, although they may arrive in any order.

    A loss is kept in memory until all earlier losses of its stream have arrived; losses that are
    still waiting when the writer closes are omitted. ``first`` is the sequence ID to continue from:
    the lines before it are kept, later ones are dropped.

    Raises:
        LogError: if some of the lines to keep are missing.
        StorageError: if the file cannot be written.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self._next: dict[int, int] = defaultdict(lambda: first)
        self._waiting: dict[tuple[int, int], Row] = {}
        self._path = path
        self._count = 0
        self._marks: deque[tuple[int, int]] = deque([_EMPTY], _MARKED)
        """Length in bytes and CRC32 of all lines up to each of the last losses."""
        for loss in islice(iterate_losses(path, first), first) if first else ():
            self._mark(_row(loss))
        with writing(path):
            keeps = (lambda row: int(row["sequence_id"]) < first) if first else None
            self._lines = RolledLines(path, keeps)

    def append(
        self, stream: int, sequence_id: int, value: float, bits: str, beside: Beside = NOTHING
    ) -> None:
        """Write or buffer one loss; LogError if the loss of this pass was recorded before."""
        if sequence_id < self._next[stream] or (stream, sequence_id) in self._waiting:
            raise LogError(f"loss of subnet {stream}.{sequence_id} was recorded twice")
        loss = Loss(StreamId(stream), SequenceId(sequence_id), value, bits, beside)
        self._waiting[stream, sequence_id] = _row(loss)
        while row := self._waiting.pop((stream, self._next[stream]), None):
            self._next[stream] += 1
            self._mark(row)
            self._lines.append(row)

    def sync(self, count: int) -> tuple[int, int]:
        """Flush the first ``count`` lines to disk; return their length in bytes and CRC32.

        Raises:
            LogError: if there are fewer lines.
        """
        if count > self._count:
            raise LogError(f"expected the losses of {count} subnets, found {self._count}")
        self._lines.sync()
        ago = self._count - count
        if ago < len(self._marks):
            return self._marks[-1 - ago]
        mark = _EMPTY
        for loss in islice(iterate_losses(self._path, count), count):
            mark = _after(mark, _row(loss))
        return mark

    def _mark(self, row: Row) -> None:
        self._count += 1
        self._marks.append(_after(self._marks[-1], row))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_losses(path: Path, expected: tuple[int, int]) -> None:
    """Check length and CRC32 of the lines that a checkpoint relies on; LogError if they differ."""
    mark = _EMPTY
    for loss in iterate_losses(path):
        if mark[0] >= expected[0]:
            break
        mark = _after(mark, _row(loss))
    length, checksum = mark
    if mark != expected:
        raise LogError(
            f"{path}: expected {expected[0]} bytes with the CRC32 {expected[1]:08x}, found "
            f"{length} with {checksum:08x}"
        )


def read_losses(path: Path, count: int | None = None) -> list[Loss]:
    """Return every loss, or the first ``count``, in order; see :func:`iterate_losses`."""
    return list(islice(iterate_losses(path, count), count))


def iterate_losses(path: Path, least: int | None = None) -> Iterator[Loss]:
    """Yield every loss in order; a torn last line is dropped.

    A damaged row, a missing file, or fewer than ``least`` losses raise LogError.
    """
    expected: dict[int, int] = {}
    found = 0
    try:
        for place, row in read_rows(path):
            try:
                loss = _parse(row)
                if loss.sequence_id != expected.get(loss.stream, 0):
                    raise ValueError
            except (ValueError, TypeError, KeyError) as error:
                raise LogError(
                    f"{place}: expected the loss of the next step, found {row!r:.120}"
                ) from error
            expected[loss.stream] = loss.sequence_id + 1
            found += 1
            yield loss
    except OSError as error:
        raise LogError(f"{path}: expected the losses of a run, found {error.strerror}") from error
    if least is not None and found < least:
        raise LogError(f"{path}: expected {least} losses, found {found}")


def _after(mark: tuple[int, int], row: Row) -> tuple[int, int]:
    """Update length in bytes and CRC32 with one more line."""
    line = line_of(row)
    return mark[0] + len(line), crc32(line, mark[1])


def _row(loss: Loss) -> Row:
    fields: dict[str, Any] = {
        "stream": loss.stream,
        "sequence_id": loss.sequence_id,
        "loss": _plain(loss.value),
        "bits": loss.bits,
    }
    if loss.beside.batch:
        fields["batch"] = loss.beside.batch
    if loss.beside.metrics:
        metrics = loss.beside.metrics
        fields["metrics"] = {name: [_plain(each.value), each.bits] for name, each in metrics}
    return fields


def _plain(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _parse(fields: Any) -> Loss:
    stream, sequence_id, bits = fields["stream"], fields["sequence_id"], fields["bits"]
    if not (isinstance(stream, int) and isinstance(sequence_id, int) and isinstance(bits, str)):
        raise TypeError
    int(bits, 16)
    beside = read_beside(fields.get("batch", ""), fields.get("metrics", {}))
    return Loss(StreamId(stream), SequenceId(sequence_id), float(fields["loss"]), bits, beside)


def read_beside(batch: Any, metrics: Any) -> Beside:
    """Convert plain values, where ``metrics`` maps names to pairs of value and bits.

    Other values raise TypeError or ValueError.
    """
    if not (isinstance(batch, str) and isinstance(metrics, dict)):
        raise TypeError
    found = []
    for name, (value, bits) in metrics.items():
        int(bits, 16)
        found.append((str(name), Number(float(value), bits)))
    return Beside(batch, tuple(found))


class SectionLosses:
    """The losses of one stream, with a file for each section of its chain; a context manager.

    Args:
        paths: the file of each section; at least one.
        first: see :class:`LossWriter`.
        is_trained: False for a stream without losses, whose files stay empty.
    """

    def __init__(self, paths: Sequence[Path], first: int = 0, is_trained: bool = True) -> None:
        self._is_trained = is_trained
        with ExitStack() as stack:
            writers = (LossWriter(path, first if is_trained else 0) for path in paths)
            self._writers = [stack.enter_context(writer) for writer in writers]
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._resources.close()

    def append(
        self, section: int, sequence_id: int, value: float, bits: str, beside: Beside = NOTHING
    ) -> None:
        self._writers[section].append(FIRST_STREAM, sequence_id, value, bits, beside)

    def sync(self, count: int) -> tuple[int, int]:
        """Sync ``count`` losses of each file; return length and CRC32 of the chain end's lines."""
        first, *_ = [writer.sync(count if self._is_trained else 0) for writer in self._writers]
        return first


class MetricsFile:
    """Appends rows, each written without buffering.

    ``first`` is the step from which a run continues: whole rows of earlier steps are kept, others
    are dropped. Infinity and NaN are written as text, unknown values as null.

    Raises:
        StorageError: if the file cannot be written.
    """

    def __init__(self, path: Path, first: int) -> None:
        def is_before(row: Row) -> bool:
            step = row.get("step")
            return type(step) is int and step < first

        with writing(path):
            self._lines = RolledLines(path, is_before if first and path.exists() else None)

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        row = {"step": step, **{name: _plain(value) for name, value in values.items()}}
        self._lines.append(row)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return every whole row in order; empty without a file. LogError if a table is damaged."""
    try:
        return [row for _, row in read_rows(path) if type(row.get("step")) is int]
    except FileNotFoundError:
        return []
