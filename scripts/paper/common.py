"""What every experiment of the paper is made of: options, results, and how they are kept."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
"""Okabe and Ito's, which colour-blind people can tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says; None leaves an experiment's own default."""

    steps: int | None = None
    seeds: int = 2
    """Simulations are means over so many streams."""
    spaces: tuple[str, ...] | None = None
    stages: tuple[int, ...] | None = None
    scale: str = "tiny"
    """Of real runs."""
    repetitions: int = 3
    """Of real timings."""
    is_real: bool = True
    """Also do the parts that train on this machine, where an experiment has both."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One line of the table in artifacts/README.md."""

    what: str
    ours: str
    paper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an experiment found."""

    experiment: str
    title: str
    kind: str
    """``simulated``, ``real`` or both."""
    rows: Sequence[dict[str, Any]]
    """Flat, each with the paper's value beside ours where it has one."""
    headlines: Sequence[Headline]
    differs: str
    """What stands between our value and the paper's."""
    settings: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Curves and other things that are not rows."""
    holds: bool = True
    """Whether what must be so (identical bits, an order of throughputs) is so."""


Draw = Callable[[Result, Any], None]
"""Draws a result into a new matplotlib figure."""


def keep(result: Result, command: str, directory: Path, draw: Draw) -> None:
    """Write ``result.json``, ``result.csv`` and ``result.png`` below ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"command": command, **asdict(result)}
    (directory / "result.json").write_text(json.dumps(content, indent=1) + "\n")
    names = list(dict.fromkeys(name for row in result.rows for name in row))
    with (directory / "result.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(result.rows)
    draw_to(directory / "result.png", lambda figure: draw(result, figure))


def draw_to(path: Path, draw: Callable[[Any], None]) -> None:
    """Make one figure without a display."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=COLOURS)
    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    figure = pyplot.figure(layout="constrained")
    draw(figure)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def show(result: Result) -> None:
    """Print the rows as a table, then what differs."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(box=SIMPLE_HEAD, title=f"{result.title} ({result.kind})", title_justify="left")
    names = list(dict.fromkeys(name for row in result.rows for name in row))
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in result.rows:
        table.add_row(*(text_of(row.get(name)) for name in names))
    console.print(table)
    for line in result.headlines:
        console.print(f"{line.what}: ours {line.ours}; the paper {line.paper}")
    console.print(f"What differs: {result.differs}\n")


def text_of(value: Any) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def grouped_bars(
    axis: Any, groups: Sequence[str], series: dict[str, Sequence[float | None]]
) -> None:
    """One bar per series in every group; a missing value leaves a gap."""
    width = 0.84 / len(series)
    for place, (label, values) in enumerate(series.items()):
        shift = (place - (len(series) - 1) / 2) * width
        known = [(n + shift, value) for n, value in enumerate(values) if value is not None]
        axis.bar([x for x, _ in known], [y for _, y in known], width * 0.92, label=label)
    axis.set_xticks(range(len(groups)), groups)


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def real_run(**job: Any) -> dict[str, Any]:
    """Train in a process of its own and return what :mod:`scripts.paper.real` reports.

    A new process each time, so that no run finds memory or threads that another left.

    Raises:
        RuntimeError: with the last line that the run said, when it failed.
    """
    command = [sys.executable, str(ROOT / "scripts/paper/real.py"), json.dumps(job)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    said = " ".join(str(job[name]) for name in ("space", "policy", "stages") if name in job)
    print(f"  {said}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"{job}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
