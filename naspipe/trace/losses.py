"""Per-step losses: a decimal to read, and the exact bits to compare."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from naspipe.core.errors import LogError
from naspipe.core.ids import SequenceId, StreamId


class Loss(NamedTuple):
    """One step's loss; ``bits`` is the hex of its own bytes, as one big-endian number."""

    stream: StreamId
    sequence_id: SequenceId
    value: float
    bits: str


class LossWriter:
    """Writes losses in sequence order per stream, in whatever order they come.

    A loss waits in memory until every earlier one of its stream is there; what still waits
    when the writer closes is left out. ``first`` is the sequence ID to go on from: earlier
    lines of a file that exists are kept, later ones are dropped.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        kept = [loss for loss in read_losses(path) if loss.sequence_id < first] if first else []
        self._first = first
        self._next: dict[int, int] = defaultdict(lambda: self._first)
        self._waiting: dict[tuple[int, int], str] = {}
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._file.writelines(_line(loss) for loss in kept)

    def append(self, stream: int, sequence_id: int, value: float, bits: str) -> None:
        """Take one loss; each line is handed to the operating system at once.

        Raises:
            LogError: when this step's loss was given before.
        """
        if sequence_id < self._next[stream] or (stream, sequence_id) in self._waiting:
            raise LogError(f"loss of subnet {stream}.{sequence_id} was recorded twice")
        loss = Loss(StreamId(stream), SequenceId(sequence_id), value, bits)
        self._waiting[stream, sequence_id] = _line(loss)
        while line := self._waiting.pop((stream, self._next[stream]), None):
            self._next[stream] += 1
            self._file.write(line)

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


def read_losses(path: Path) -> list[Loss]:
    """Every loss, in the order of the file; a torn last line is dropped.

    Raises:
        LogError: when the file is missing, or naming the line that is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LogError(f"{path}: expected the losses of a run, found {error.strerror}") from error
    expected: dict[int, int] = {}
    losses = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            loss = _parse(json.loads(line))
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
    value: float | str = loss.value if math.isfinite(loss.value) else str(loss.value)
    fields = {
        "stream": loss.stream,
        "sequence_id": loss.sequence_id,
        "loss": value,
        "bits": loss.bits,
    }
    return json.dumps(fields, allow_nan=False) + "\n"


def _parse(fields: Any) -> Loss:
    stream, sequence_id, bits = fields["stream"], fields["sequence_id"], fields["bits"]
    if not (isinstance(stream, int) and isinstance(sequence_id, int) and isinstance(bits, str)):
        raise TypeError
    int(bits, 16)
    return Loss(StreamId(stream), SequenceId(sequence_id), float(fields["loss"]), bits)
