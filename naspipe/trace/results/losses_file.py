"""The loss of every pass: a decimal to read, and the exact bits to compare."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from zlib import crc32

from naspipe.core.errors import LogError
from naspipe.core.ids import FIRST_STREAM, SequenceId, StreamId
from naspipe.core.json_text import parse_json
from naspipe.trace.storage.writing import write_whole, writing


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
        self._path, self._first = path, first
        self._next: dict[int, int] = defaultdict(lambda: self._first)
        self._waiting: dict[tuple[int, int], str] = {}
        self._marks = [(0, 0)]
        """Behind each line: the bytes and the CRC32 of the file so far."""
        kept = [_line(loss) for loss in read_losses(path, first)] if first else []
        with writing(path):
            self._file = path.open("r+b" if first else "wb", buffering=0)
        for line in kept:
            self._mark(line.encode())
        self._file.truncate(self._marks[-1][0])
        self._file.seek(0, os.SEEK_END)

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
        self._waiting[stream, sequence_id] = _line(loss)
        while line := self._waiting.pop((stream, self._next[stream]), None):
            self._next[stream] += 1
            self._mark(line.encode())
            with writing(self._path, len(line)):
                write_whole(self._file, line.encode())

    def sync(self, count: int) -> tuple[int, int]:
        """Put the first ``count`` lines on disk; returns their bytes and their CRC32.

        Raises:
            LogError: when they have not all been given.
        """
        if count >= len(self._marks):
            raise LogError(f"expected the losses of {count} subnets, found {len(self._marks) - 1}")
        os.fsync(self._file.fileno())
        return self._marks[count]

    def _mark(self, line: bytes) -> None:
        length, checksum = self._marks[-1]
        self._marks.append((length + len(line), crc32(line, checksum)))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

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
    """Check the lines that a checkpoint relies on: their bytes and their CRC32.

    Raises:
        LogError: when they are not those.
    """
    length, checksum = expected
    try:
        with path.open("rb") as file:
            data = file.read(length)
    except OSError as error:
        raise LogError(f"{path}: expected the losses of a run, found {error.strerror}") from error
    if len(data) != length or crc32(data) != checksum:
        raise LogError(
            f"{path}: expected {length} bytes with the CRC32 {checksum:08x}, found {len(data)} "
            f"with {crc32(data):08x}"
        )


def read_losses(path: Path, count: int | None = None) -> list[Loss]:
    """Every loss, or the first ``count``, in the order of the file; a torn last line is dropped.

    Raises:
        LogError: when the file is missing or too short, or naming the line that is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LogError(f"{path}: expected the losses of a run, found {error.strerror}") from error
    expected: dict[int, int] = {}
    losses = []
    if count is not None and len(lines) <= count:
        raise LogError(f"{path}: expected {count} losses, found {len(lines) - 1}")
    for number, line in enumerate(lines[:-1][:count], 1):
        try:
            loss = _parse(parse_json(line))
            if loss.sequence_id != expected.get(loss.stream, 0):
                raise ValueError
        except (ValueError, TypeError, KeyError) as error:
            raise LogError(
                f"{path}:{number}: expected the loss of the next step, found {line!r:.120}"
            ) from error
        expected[loss.stream] = loss.sequence_id + 1
        losses.append(loss)
    return losses


def _line(loss: Loss) -> str:
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
    return json.dumps(fields, allow_nan=False) + "\n"


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
