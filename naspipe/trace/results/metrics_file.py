"""``metrics.jsonl``: what was known of a run while it went, a row per pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from naspipe.trace.results.rolled_lines import RolledLines, read_rows
from naspipe.trace.storage.writing import writing


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
