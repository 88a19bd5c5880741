"""The loss of every pass: a decimal to read, and the exact bits to compare."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from zlib import crc32

from naspipe.config.errors import LogError
from naspipe.config.ids import FIRST_STREAM, SequenceId, StreamId
from naspipe.trace.results.rolled_lines import RolledLines, Row, line_of, read_rows
from naspipe.trace.storage.writing import writing

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
