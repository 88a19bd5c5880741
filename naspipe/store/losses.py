"""The loss of every pass: a decimal to read, and the exact bits to compare."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
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
    """Where the rows before a file's lines are."""
    return path.with_suffix(".msgpack")


class RolledLines:
    """Appends rows, each handed to the operating system at once.

    Args:
        path: of the lines.
        keeps: whether a row that is there stays; None to begin anew.

    Raises:
        OSError: when a file cannot be written.
        LogError: when rows that are there cannot be read.
    """

    def __init__(self, path: Path, keeps: Callable[[Row], bool] | None = None) -> None:
        self._path = path
        self._tables: FramedWriter | None = None
        self._newest: list[bytes] = []
        if keeps is None:
            tables_of(path).unlink(missing_ok=True)
            self._file = path.open("wb", buffering=0)
            return
        newest = [row for _, row in _newest(path, _last_rows(path))]
        self._newest = [line_of(row) for row in newest if keeps(row)]
        _cut_tables(tables_of(path), keeps)
        self._replace()

    def append(self, row: Row) -> None:
        """Add one row."""
        line = line_of(row)
        with writing(self._path, len(line)):
            write_whole(self._file, line)
        self._newest.append(line)
        if len(self._newest) >= 2 * ROLLED:
            self._roll()

    def sync(self) -> None:
        """Put every row on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._file.close()
        if self._tables is not None:
            self._tables.close()

    def _roll(self) -> None:
        if self._tables is None:
            self._tables = FramedWriter(tables_of(self._path), MAGIC, VERSION)
        older, self._newest = self._newest[:ROLLED], self._newest[ROLLED:]
        _append(self._tables, [parse_json(line) for line in older])
        os.fsync(self._tables.fileno())
        self._file.close()
        self._replace()

    def _replace(self) -> None:
        with atomic_file(self._path) as file:
            file.write(b"".join(self._newest))
        self._file = self._path.open("ab", buffering=0)


def line_of(row: Row) -> bytes:
    """A row as its line."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


class Place(NamedTuple):
    """Where a row stands."""

    path: Path
    number: int
    row: int = -1
    """Of a table; a line has none."""

    def __str__(self) -> str:
        if self.row < 0:
            return f"{self.path}:{self.number}"
        return f"{self.path}, table {self.number}, row {self.row}"


def read_rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every row and where it stands, in order; a torn last line is dropped.

    A line that is no JSON is handed over as a row without fields, for the caller to judge.

    Raises:
        LogError: when a table is damaged.
        OSError: when there are no lines.
    """
    last: deque[Row] = deque(maxlen=ROLLED)
    tables = tables_of(path)
    for number, rows in enumerate(_tables(tables)):
        for place, row in enumerate(rows):
            yield Place(tables, number, place), row
        last.extend(rows)
    yield from _newest(path, last)


def _last_rows(path: Path) -> deque[Row]:
    """The last ones that are in tables."""
    last: deque[Row] = deque(maxlen=ROLLED)
    for rows in _tables(tables_of(path)):
        last.extend(rows)
    return last


def _newest(path: Path, last: Sequence[Row]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of the lines, without those that are in a table by now.

    A process that died between the two has left the last rows of the tables in the lines, too.
    """
    found = [_parsed(line) for line in path.read_bytes().split(b"\n")[:-1]]
    doubled = next((len(last) - n for n, row in enumerate(last) if found[:1] == [row]), 0)
    for number, row in enumerate(found[doubled:], doubled + 1):
        yield Place(path, number), row


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _append(tables: FramedWriter, rows: Sequence[Row]) -> None:
    """Add rows as one table, or as several where they are long."""
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


def _cut_tables(path: Path, keeps: Callable[[Row], bool]) -> None:
    """Leave the rows that stay."""
    if not path.exists():
        return
    fresh = path.with_name(f".{path.name}.cut")
    fresh.unlink(missing_ok=True)
    with FramedWriter(fresh, MAGIC, VERSION) as tables:
        for rows in _tables(path):
            if kept := [row for row in rows if keeps(row)]:
                _append(tables, kept)
        os.fsync(tables.fileno())
    fresh.replace(path)


_MARKED = 1 << 14
"""Losses whose bytes so far are kept in memory: checkpoints ask for recent ones."""
_EMPTY = (0, 0)


class Number(NamedTuple):
    """A number that was computed; ``bits`` is the hex of its own bytes, as a big-endian number."""

    value: float
    bits: str


class Beside(NamedTuple):
    """What is recorded of a pass beside its loss."""

    batch: str = ""
    """A digest of its batch; empty where it is not known."""
    metrics: tuple[tuple[str, Number], ...] = ()
    """By name."""


NOTHING = Beside()


class Loss(NamedTuple):
    """One pass's loss; ``bits`` is the hex of its own bytes, as one big-endian number."""

    stream: StreamId
    sequence_id: SequenceId
    value: float
    bits: str
    beside: Beside = NOTHING


class LossWriter:
    """Writes losses in sequence order per stream, in whatever order they come.

    A loss waits in memory until every earlier one of its stream is there; what still waits
    when the writer closes is left out. ``first`` is the sequence ID to go on from: the lines
    before it are kept, later ones are dropped.

    Raises:
        LogError: when the lines to keep are not all there.
        StorageError: when the file cannot be written.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self._first = first
        self._next: dict[int, int] = defaultdict(lambda: self._first)
        self._waiting: dict[tuple[int, int], Row] = {}
        self._path = path
        self._count = 0
        self._marks: deque[tuple[int, int]] = deque([_EMPTY], _MARKED)
        """Behind each of the last losses: the bytes and the CRC32 of the lines of all so far."""
        for loss in islice(iterate_losses(path, first), first) if first else ():
            self._mark(_row(loss))
        with writing(path):
            self._lines = RolledLines(path, self._keeps if first else None)

    def _keeps(self, row: Row) -> bool:
        return int(row["sequence_id"]) < self._first

    def append(
        self, stream: int, sequence_id: int, value: float, bits: str, beside: Beside = NOTHING
    ) -> None:
        """Take one loss; each line is handed to the operating system at once.

        Raises:
            LogError: when this pass's loss was given before.
            StorageError: when it cannot be written.
        """
        if sequence_id < self._next[stream] or (stream, sequence_id) in self._waiting:
            raise LogError(f"loss of subnet {stream}.{sequence_id} was recorded twice")
        loss = Loss(StreamId(stream), SequenceId(sequence_id), value, bits, beside)
        self._waiting[stream, sequence_id] = _row(loss)
        while row := self._waiting.pop((stream, self._next[stream]), None):
            self._next[stream] += 1
            self._mark(row)
            self._lines.append(row)

    def sync(self, count: int) -> tuple[int, int]:
        """Put the first ``count`` lines on disk; returns their bytes and their CRC32.

        Raises:
            LogError: when they have not all been given.
        """
        if count > self._count:
            raise LogError(f"expected the losses of {count} subnets, found {self._count}")
        self._lines.sync()
        ago = self._count - count
        if ago < len(self._marks):
            return self._marks[-1 - ago]
        mark = _EMPTY
        for loss in islice(iterate_losses(self._path, count), count):
            mark = _behind(mark, _row(loss))
        return mark

    def _mark(self, row: Row) -> None:
        self._count += 1
        self._marks.append(_behind(self._marks[-1], row))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_losses(path: Path, expected: tuple[int, int]) -> None:
    """Check the losses that a checkpoint relies on: the bytes and the CRC32 of their lines.

    Raises:
        LogError: when they are not those.
    """
    mark = _EMPTY
    for loss in iterate_losses(path):
        if mark[0] >= expected[0]:
            break
        mark = _behind(mark, _row(loss))
    length, checksum = mark
    if mark != expected:
        raise LogError(
            f"{path}: expected {expected[0]} bytes with the CRC32 {expected[1]:08x}, found "
            f"{length} with {checksum:08x}"
        )


def read_losses(path: Path, count: int | None = None) -> list[Loss]:
    """Every loss, or the first ``count``, in order; a torn last line is dropped.

    Raises:
        LogError: when the file is missing or too short, or naming the row that is damaged.
    """
    return list(islice(iterate_losses(path, count), count))


def iterate_losses(path: Path, least: int | None = None) -> Iterator[Loss]:
    """The same, one at a time; at least so many are expected."""
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


def _behind(mark: tuple[int, int], row: Row) -> tuple[int, int]:
    """Bytes and CRC32 with one more line."""
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


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _parse(fields: Any) -> Loss:
    stream, sequence_id, bits = fields["stream"], fields["sequence_id"], fields["bits"]
    if not (isinstance(stream, int) and isinstance(sequence_id, int) and isinstance(bits, str)):
        raise TypeError
    int(bits, 16)
    beside = read_beside(fields.get("batch", ""), fields.get("metrics", {}))
    return Loss(StreamId(stream), SequenceId(sequence_id), float(fields["loss"]), bits, beside)


def read_beside(batch: Any, metrics: Any) -> Beside:
    """What is recorded beside a loss, from plain values: of each metric, its value and its bits.

    Raises:
        TypeError, ValueError: when they are not that.
    """
    if not (isinstance(batch, str) and isinstance(metrics, dict)):
        raise TypeError
    found = []
    for name, (value, bits) in metrics.items():
        int(bits, 16)
        found.append((str(name), Number(float(value), bits)))
    return Beside(batch, tuple(found))


class SectionLosses:
    """The losses of one stream: a file for each section of its chain; a context manager.

    Args:
        paths: by section, at least one.
        first: see :class:`LossWriter`.
        is_trained: otherwise there are none, and the file stays empty.
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
        """Take one loss; see :meth:`LossWriter.append`."""
        self._writers[section].append(FIRST_STREAM, sequence_id, value, bits, beside)

    def sync(self, count: int) -> tuple[int, int]:
        """Put the first ``count`` of each on disk; returns bytes and CRC32 of the chain's end's."""
        first, *_ = [writer.sync(count if self._is_trained else 0) for writer in self._writers]
        return first


class MetricsFile:
    """Appends rows, each handed to the operating system at once.

    ``first`` is the step that a run goes on at: whole rows of earlier steps are kept, others
    dropped. Numbers that are infinite or none are written as texts, what is not known as null.

    Raises:
        StorageError: when the file cannot be written.
    """

    def __init__(self, path: Path, first: int) -> None:
        self._path = path
        with writing(path):
            is_there = first and path.exists()
            keeps = partial(_is_before, first) if is_there else None
            self._lines = RolledLines(path, keeps)

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        """Append one row.

        Raises:
            StorageError: when it cannot be written.
        """
        row = {"step": step, **{name: _plain_metric(value) for name, value in values.items()}}
        self._lines.append(row)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole row, in order; none where there is no file.

    Raises:
        LogError: when rows of long ago are damaged.
    """
    try:
        return [row for _, row in read_rows(path) if type(row.get("step")) is int]
    except FileNotFoundError:
        return []


def _is_before(first: int, row: Mapping[str, Any]) -> bool:
    step = row.get("step")
    return type(step) is int and step < first


def _plain_metric(value: float | str | None) -> float | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
