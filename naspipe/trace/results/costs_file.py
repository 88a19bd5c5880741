"""What every layer was taken to cost when a run was planned, ``costs.json``.

Orders with priorities follow these costs. So whoever simulates the run again has to know them: with
others the same stage would take its tasks in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from naspipe.config.errors import ConfigError
from naspipe.config.text import parse_json
from naspipe.trace.storage.whole_files import write_json

Row = Sequence[int]
"""Block, option, and whatever there is to say of it in nanoseconds and bytes."""

_LARGEST = 1 << 62


def write_costs(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write the rows; ``columns`` says what is in each.

    Raises:
        OSError: when it cannot be written.
    """
    write_json(path, {"columns": " ".join(columns), "rows": [" ".join(map(str, r)) for r in rows]})


def read_costs(path: Path, columns: Sequence[str]) -> list[tuple[int, ...]] | None:
    """The rows of a run; None where it has none, as runs that were planned without costs.

    Raises:
        ConfigError: when they are damaged, or have other columns.
    """
    if not path.exists():
        return None
    try:
        values = parse_json(path.read_text("utf-8"))
        rows = [tuple(map(int, row.split(" "))) for row in values["rows"]]
        is_good = values["columns"] == " ".join(columns)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        is_good, rows = False, []
    if not is_good or not all(_is_row(row, len(columns)) for row in rows):
        raise ConfigError(
            f"{path}: expected rows of {', '.join(columns)}, found something else; without the "
            f"file they are taken from the log"
        )
    return rows


def _is_row(row: tuple[int, ...], length: int) -> bool:
    return len(row) == length and all(0 <= value < _LARGEST for value in row)
