"""What all benchmarks share: fresh processes, alternation, spreads, tables, and kept results."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.machine.determinism import describe_environment
from naspipe.store.files import write_json

ROOT = Path(__file__).parents[2]


class Spread(NamedTuple):
    """The median of some figures, the least and the greatest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one figure."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        digits = 3 if self.median < 10 else 1 if self.median < 1000 else 0
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def in_turn(names: Sequence[str], repetition: int) -> Sequence[str]:
    """Return the names in the order of one repetition, so that no drift favours the first."""
    return names[::-1] if repetition % 2 else names


def measure_apart(name: str, words: Sequence[str], copies: int = 1) -> list[dict[str, Any]]:
    """Run a benchmark in new processes, several at once, and return what each printed last.

    A new process for each run finds no memory or threads that another run has left.

    Raises:
        RuntimeError: with the last line of standard error if one of them fails.
    """
    command = [sys.executable, str(Path(__file__).parent), name, *words]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(copies)
    ]
    found = []
    for process in started:
        out, err = process.communicate()
        if process.returncode:
            lines = [line for line in err.splitlines() if line.strip()] or [""]
            raise RuntimeError(f"{' '.join(command[1:])}: {lines[-1]}")
        found.append(json.loads(out.splitlines()[-1]))
    return found


def keep(path: Path | None, name: str, words: Sequence[str], result: Mapping[str, Any]) -> None:
    """Write a result as JSON, with the command and the machine; nothing if there is no path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = " ".join(["scripts/bench", name, *words])
        write_json(path, {"command": command, "environment": describe_environment(), **result})


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=SIMPLE_HEAD, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(table)
