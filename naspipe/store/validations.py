"""``validation.jsonl``: how the supernet did on held-out data, a line per cut of the stream.

A line has the cut (``sequence_id``: the updates of all subnets below it are in), the number of
``steps`` behind it, and scores: means over the subnets that were judged, then each ``subnets``
entry with its ``choices`` and its own scores. Every score is a decimal to read, and its 64 bits in
hex, as ``NAME_bits``, to compare.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import LogError
from naspipe.config.text import parse_json
from naspipe.store.files import write_whole, writing

_BITS = "_bits"
_DOUBLE = struct.Struct(">d")


class Judged(NamedTuple):
    """One subnet: one choice per choice block, and its scores by name."""

    choices: tuple[int, ...]
    scores: Mapping[str, float]


class Validation(NamedTuple):
    """What was found at one cut."""

    sequence_id: int
    """The updates of all subnets below it are in."""
    steps: int
    scores: Mapping[str, float]
    """Means over the subnets, by name."""
    subnets: tuple[Judged, ...]


class ValidationFile:
    """Appends validations in the order of their cuts, each put on disk at once.

    ``first`` is the cut that a run goes on at: whole lines of it and of earlier ones are kept,
    others dropped.

    Raises:
        StorageError: when the file cannot be written.
        LogError: when a line to keep is damaged.
    """

    def __init__(self, path: Path, first: int) -> None:
        self._path = path
        kept = [pair for pair in _lines(path) if pair[1].sequence_id <= first] if first else []
        self.known = {each.sequence_id for _, each in kept}
        """Cuts whose lines are there."""
        with writing(path):
            self._file = path.open("r+b" if kept else "wb", buffering=0)
            self._file.truncate(sum(len(line) for line, _ in kept))
            self._file.seek(0, os.SEEK_END)

    def append(self, found: Validation) -> None:
        """Append one line.

        Raises:
            StorageError: when it cannot be written.
        """
        data = _line(found)
        with writing(self._path, len(data)):
            write_whole(self._file, data)
        self.known.add(found.sequence_id)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def read_validations(path: Path) -> list[Validation]:
    """Every line, a torn last one dropped; none where there is no file.

    Raises:
        LogError: naming the line that is damaged.
    """
    return [each for _, each in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, Validation]]:
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        try:
            yield line + b"\n", _parsed(parse_json(line))
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise LogError(
                f"{path}:{number}: expected a validation, found {line!r:.120}; restore the file, "
                f"or remove it to do without"
            ) from error


def _line(found: Validation) -> bytes:
    fields = {
        "sequence_id": found.sequence_id,
        "steps": found.steps,
        **_written(found.scores),
        "subnets": [
            {"choices": list(each.choices), **_written(each.scores)} for each in found.subnets
        ],
    }
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def _written(scores: Mapping[str, float]) -> dict[str, float | str]:
    fields: dict[str, float | str] = {}
    for name, value in scores.items():
        fields[name] = value if math.isfinite(value) else str(value)
        fields[name + _BITS] = _DOUBLE.pack(value).hex()
    return fields


def _parsed(fields: Mapping[str, Any]) -> Validation:
    cut, steps = fields["sequence_id"], fields["steps"]
    if type(cut) is not int or type(steps) is not int:
        raise TypeError
    subnets = tuple(Judged(_choices(each["choices"]), _scores(each)) for each in fields["subnets"])
    return Validation(cut, steps, _scores(fields), subnets)


def _choices(listed: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(each) is int for each in listed):
        raise TypeError
    return tuple(listed)


def _scores(fields: Mapping[str, Any]) -> dict[str, float]:
    return dict(_pairs(fields))


def _pairs(fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Scores by name, from their exact bits."""
    for key, bits in fields.items():
        if key.endswith(_BITS):
            yield key.removesuffix(_BITS), _DOUBLE.unpack(bytes.fromhex(bits))[0]
