"""What ``naspipe plan`` has simulated: rows as they are found, the table, and why it is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from naspipe.cli.display.simulated_plans import WIDTH

if TYPE_CHECKING:
    from naspipe.planning.group_shapes import Shape
    from naspipe.sim.bottlenecks import Bottleneck
    from naspipe.sim.outcome import BackwardBounds, Outcome

_EVERY_SECONDS = 30.0
"""From one line of a bar to the next, where there is no terminal."""


class Row(NamedTuple):
    """One simulated choice."""

    sampler: str
    passes: str
    streams: int
    shape: Shape
    partition: str
    budget: str
    outcome: Outcome
    bounds: BackwardBounds | None
    """With whole and with split backwards; None where the latter is not known or cannot be."""
    limits: list[Bottleneck]
    lag: int | None
    """The least K of lag(K) that is enough; looked for on all devices in one group."""


class Found:
    """Says on stderr what is found while the rest is simulated; a context manager.

    Args:
        total: simulations to be done.
        is_quiet: say nothing.
    """

    def __init__(self, total: int, is_quiet: bool) -> None:
        from naspipe.frontend.display.bar import Bar

        self._bar = Bar("simulating", total, is_quiet, _EVERY_SECONDS)
        self._done = 0

    def __enter__(self) -> Self:
        self._bar.show()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def row(self, row: Row) -> None:
        """One more row is known."""
        outcome = row.outcome
        kind = " ".join(filter(None, [row.sampler, "" if row.passes == "one" else row.passes]))
        streams = f", {row.streams} streams" if row.streams > 1 else ""
        budget = f", budget {row.budget}" if row.budget != "none" else ""
        self._bar.say(
            f"{kind}, stages {row.shape}{streams}{budget}: {outcome.passes_per_second:.3f} "
            f"subnets/s, bubble {outcome.bubble_ratio:.3f}"
        )
        self.step()

    def step(self) -> None:
        """One more simulation is done."""
        self._done += 1
        self._bar.update(self._done, "")


def as_json(row: Row) -> dict[str, object]:
    """One row's plain values."""
    return {
        "sampler": row.sampler,
        "passes": row.passes,
        "groups": row.shape.groups,
        "stages_per_group": row.shape.stages,
        "partition": row.partition,
        "streams": row.streams,
        "budget": row.budget,
        **row.outcome.as_dict(),
        "bounds": {
            name: bound.bubble(row.outcome.stages)
            for name, bound in (row.bounds._asdict() if row.bounds else {}).items()
        },
        "limits": [limit.text for limit in row.limits],
        "lag_needed": row.lag,
    }


_NAMES = (
    "sampler", "passes", "streams", "stages", "cuts", "budget", "order", "subnets/s", "bubble",
    "bound", "bound\nsplit", "above", "hits", "layers\nMiB", "passes\nMiB",
)  # fmt: skip
"""Of columns; those without anything known are left out."""
_CHOSEN = ("passes", "streams", "cuts", "budget", "hits")
"""Columns that are left out where all rows are alike."""


def print_rows(rows: Sequence[Row]) -> None:
    """The table, best first, and what limits the most stages of each kind."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("sampler", no_wrap=True)
    columns = {name: list(cells) for name, *cells in zip(_NAMES, *map(_cells, rows), strict=True)}
    known = {name: cells for name, cells in columns.items() if _is_told(name, cells)}
    for name in list(known)[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in zip(*known.values(), strict=True):
        table.add_row(*map(Text, cells))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    for kind in dict.fromkeys(row[:3] for row in rows):
        widest = max((r for r in rows if r[:3] == kind), key=lambda row: row.outcome.stages)
        streams = f", {widest.streams} streams," if widest.streams > 1 else ""
        passes = f" {widest.passes}" if widest.passes != "one" else ""
        head = f"{widest.sampler}{passes}{streams} on {widest.shape} stages is limited by"
        lines = [f"  {limit.text}" for limit in widest.limits] or ["  nothing that was looked for"]
        if widest.lag is not None:
            lines.append(f"  from lag({widest.lag}) on a longer lag does not make it faster")
        console.print(Text("\n".join([head, *lines])))


def _is_told(name: str, cells: list[str]) -> bool:
    return any(cells) and (name not in _CHOSEN or len(set(cells)) > 1)


def _cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    own = f"{outcome.bound:.3f}"
    bounds = [f"{bound.bubble(outcome.stages):.3f}" for bound in row.bounds or ()] or [own, ""]
    return (
        row.sampler,
        "" if row.passes == "one" else row.passes,
        str(row.streams),
        str(row.shape),
        row.partition,
        row.budget,
        outcome.order,
        f"{outcome.passes_per_second:.3f}",
        f"{outcome.bubble_ratio:.3f}",
        *bounds,
        f"{outcome.distance:+.3f}",
        f"{outcome.hit_rate:.1%}",
        _mebibytes(max(use.layer_bytes for use in outcome.uses)),
        _mebibytes(max(use.activation_bytes for use in outcome.uses)),
    )


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f}" if count else ""
