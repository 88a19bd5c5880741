"""``metrics.jsonl``: what was known of a run while it went, a line per pass."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from naspipe.core.json_text import parse_json
from naspipe.trace.storage.writing import write_whole, writing


class MetricsFile:
    """Appends lines, each handed to the operating system at once.

    ``first`` is the step that a run goes on at: whole lines of earlier steps are kept, others
    dropped. Numbers that are infinite or none are written as texts, what is not known as null.

    Raises:
        StorageError: when the file cannot be written.
    """

    def __init__(self, path: Path, first: int) -> None:
        self._path = path
        kept = [line for line, row in _lines(path) if row["step"] < first] if first else []
        data = b"".join(kept)
        with writing(path, len(data)):
            self._file = path.open("wb", buffering=0)
            write_whole(self._file, data)

    def write(self, step: int, values: Mapping[str, float | str | None]) -> None:
        """Append one line.

        Raises:
            StorageError: when it cannot be written.
        """
        row = {"step": step, **{name: _plain(value) for name, value in values.items()}}
        data = json.dumps(row, allow_nan=False).encode() + b"\n"
        with writing(self._path, len(data)):
            write_whole(self._file, data)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line; none where there is no file."""
    return [row for _, row in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("step"), int):
            yield line, row


def _plain(value: float | str | None) -> float | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
