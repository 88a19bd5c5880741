"""Output of commands on stdout and stderr, as lines or as JSON.

Either stream may be closed, full or without a reader. JSON is for scripts and dashboards
(``--json``).
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from naspipe.config.errors import reason
from naspipe.store.files import STORAGE, cannot_write

if TYPE_CHECKING:
    from rich.console import Console

    from naspipe.cli.options import Options
    from naspipe.store.run_directory import RunDirectory


# Lines


def tell(line: str) -> None:
    """Print a result that is already on disk; use stderr if stdout cannot be written."""
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        silence(sys.stdout)
        complain(f"stdout cannot be written ({error}); the work is done: {line}")


def complain(text: str) -> None:
    """Print one line on stderr with the usual prefix, if stderr can be written."""
    try:
        print(f"naspipe: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def systems_line(error: OSError | MemoryError | ImportError) -> str:
    """Return one line on an error of the operating system; raise all other errors again."""
    if isinstance(error, OSError) and error.errno in STORAGE:
        return str(cannot_write(Path(error.filename or "stdout"), error))
    is_short = isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = limit != resource.RLIM_INFINITY
    if not is_short and not (is_limited and isinstance(error, ImportError)):
        raise error
    bound = f", with a limit of {limit >> 10:,} KiB (ulimit -v)" if is_limited else ""
    return f"out of memory: {reason(error)}{bound}; free memory or raise the limit"


def silence(stream: TextIO | None) -> None:
    """Keep the interpreter from failing when it flushes a stream at exit."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


# Tables


WIDTH = 120
"""Width of a table in a file or a pipe."""


def table_console(width: int | None = WIDTH) -> Console:
    """Return a console on stdout for tables; without a terminal it has this width."""
    from rich.console import Console

    console = Console(highlight=False)
    if width is not None and not console.is_terminal:
        console.width = width
    return console


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = (),
    fold: Collection[str] = (),
    overflow: Literal["ellipsis", "crop"] = "ellipsis",
    has_lines: bool = True,
    width: int | None = WIDTH,
) -> Console:
    """Print a table; return the console.

    Columns are aligned to the right and in one line, except those whose heads are in ``left`` or
    ``fold``. With ``has_lines`` there is a line below the heads, and more space between columns.
    ``width`` applies without a terminal; None selects the width of rich.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD if has_lines else None, pad_edge=False)
    for head in heads:
        table.add_column(
            head,
            justify="left" if head in left else "right",
            no_wrap=head not in fold,
            overflow="fold" if head in fold or overflow == "crop" else "ellipsis",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console = table_console(width)
    console.print(table)
    return console


def cost_figures(flops: float, params: float, latency_ms: float) -> list[tuple[float, str]]:
    """Return MFLOPs, parameters and milliseconds, each with its format."""
    return [(flops / 1e6, ".2f"), (params, ",.0f"), (latency_ms, ".2f")]


def in_cells(figures: Iterable[tuple[float, str]]) -> list[str]:
    """Return formatted numbers; an unknown one (NaN) has an empty cell."""
    return ["" if math.isnan(value) else format(value, form) for value, form in figures]


# Results as JSON


def add_json(parser: Options, in_place_of: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print JSON instead of {in_place_of}")


def as_json(value: Any) -> str:
    """Return JSON that every reader accepts: infinity and NaN become null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False)


def trained(directories: Iterable[RunDirectory]) -> list[dict[str, Any]]:
    """Return for each finished run: path, status, steps, the last loss and the measurements."""
    from naspipe.store.run_directory import read_heartbeat

    found = []
    for directory in directories:
        manifest = directory.read_manifest()
        found.append(
            {
                "run": str(directory.path),
                "status": manifest["status"],
                "steps": manifest["definition"].get("steps"),
                "loss": read_heartbeat(directory.path).get("loss"),
                "measured": manifest.get("measured", {}),
            }
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
