"""``validation.jsonl``: the supernet's scores on held-out data, one line per cut of the stream.

A line has the cut (``sequence_id``: the weights include the updates of all subnets below it), the
number of ``steps`` before it, and the mean scores of the evaluated subnets, followed by ``subnets``
with the ``choices`` and scores of each. Every score is a decimal for readers and, as ``NAME_bits``,
its 64 bits in hex for comparison.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
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
    """The fields of one line."""

    sequence_id: int
    steps: int
    scores: Mapping[str, float]
    subnets: tuple[Judged, ...]


class ValidationFile:
    """Appends validations in the order of their cuts, each written without buffering.

    ``first`` is the cut from which a run continues: whole lines up to and including it are kept,
    others are dropped. ``known`` are the cuts whose lines are in the file.

    Raises:
        StorageError: if the file cannot be written.
        LogError: if a line to keep is damaged.
    """

    def __init__(self, path: Path, first: int) -> None:
        self._path = path
        kept = [pair for pair in _lines(path) if pair[1].sequence_id <= first] if first else []
        self.known = {each.sequence_id for _, each in kept}
        with writing(path):
            self._file = path.open("r+b" if kept else "wb", buffering=0)
            self._file.truncate(sum(len(line) for line, _ in kept))
            self._file.seek(0, os.SEEK_END)

    def append(self, found: Validation) -> None:
        """Append one line; StorageError if it cannot be written."""
        fields = {
            "sequence_id": found.sequence_id,
            "steps": found.steps,
            **_written(found.scores),
            "subnets": [
                {"choices": list(each.choices), **_written(each.scores)} for each in found.subnets
            ],
        }
        data = json.dumps(fields, allow_nan=False).encode() + b"\n"
        with writing(self._path, len(data)):
            write_whole(self._file, data)
        self.known.add(found.sequence_id)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def read_validations(path: Path) -> list[Validation]:
    """Return every line except a torn last one; empty if there is no file.

    Raises:
        LogError: naming the damaged line.
    """
    return [each for _, each in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, Validation]]:
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        try:
            fields = parse_json(line)
            cut, steps = fields["sequence_id"], fields["steps"]
            subnets = tuple(
                Judged(tuple(each["choices"]), _scores(each)) for each in fields["subnets"]
            )
            choices = (choice for each in subnets for choice in each.choices)
            if not all(type(whole) is int for whole in (cut, steps, *choices)):
                raise TypeError
            yield line + b"\n", Validation(cut, steps, _scores(fields), subnets)
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise LogError(
                f"{path}:{number}: expected a validation, found {line!r:.120}; restore the file, "
                f"or remove it to do without"
            ) from error


def _written(scores: Mapping[str, float]) -> dict[str, float | str]:
    fields: dict[str, float | str] = {}
    for name, value in scores.items():
        fields[name] = value if math.isfinite(value) else str(value)
        fields[name + _BITS] = _DOUBLE.pack(value).hex()
    return fields


def _scores(fields: Mapping[str, Any]) -> dict[str, float]:
    """Convert the exact bits of scores to values by name."""
    return {
        key.removesuffix(_BITS): _DOUBLE.unpack(bytes.fromhex(bits))[0]
        for key, bits in fields.items()
        if key.endswith(_BITS)
    }
