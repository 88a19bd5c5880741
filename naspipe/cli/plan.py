"""Show what more stages, other samplers or memory budgets would give, best first.

Every row is a simulation under the same controllers as a real run's; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, NamedTuple

from naspipe.cli.flags import add_flags, flags
from naspipe.cli.simulate import add_scenario_arguments, open_scenario
from naspipe.core.config import Definition

if TYPE_CHECKING:
    from naspipe.core.config import Execution
    from naspipe.frontend.simulation.scenario import Scenario
    from naspipe.sim.bottlenecks import Bottleneck
    from naspipe.sim.outcome import Outcome

_EXAMPLE = """\
examples:
  naspipe plan nlp.c1 --devices 8 --costs table5
  naspipe plan nlp.c3 --devices 4 --samplers uniform,fair,spaced:8 --budget none,3x
  naspipe plan cv.c1 --devices 8 --costs table5 --no-shared --json

bound: the least bubble that any schedule can have; above: how far this one is from it
memory: the most that one stage's layers occupy (with a budget) and its passes keep
"""

_WIDTH = 120
"""Columns of the table in a file or a pipe."""


class Row(NamedTuple):
    """One simulated choice."""

    sampler: str
    streams: int
    budget: str
    outcome: Outcome
    limits: list[Bottleneck]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("space", metavar="SPACE", help="a space by name, or MODULE:ATTRIBUTE")
    parser.add_argument("--devices", type=int, default=8, metavar="N", help="at most (default 8)")
    add_flags(parser, flags(Definition, "steps"), {"steps": 200})
    parser.add_argument("--samplers", default="", metavar="NAMES", help="with commas between")
    parser.add_argument("--streams", default="1", metavar="COUNTS", help="with commas between")
    parser.add_argument(
        "--budget", default="none", metavar="BUDGETS", help="as none,3x,512MiB: one row for each"
    )
    add_scenario_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate every choice and print them; returns the exit status."""
    from naspipe.core.errors import ConfigError

    if not 1 <= arguments.devices <= 256:
        raise ConfigError(f"--devices {arguments.devices}: expected 1 to 256")
    streams = [_count("--streams", word) for word in _listed("--streams", arguments.streams)]
    budgets = ["" if b == "none" else b for b in _listed("--budget", arguments.budget)]
    samplers = _listed("--samplers", arguments.samplers or _samplers(arguments.devices))
    # Sizes are looked at where any of the rows has a budget.
    scenario, execution = open_scenario(arguments, memory_budget=max(budgets))
    rows = sorted(
        (
            _row(
                arguments,
                scenario,
                execution.changed(stages=stages, memory_budget=budget),
                sampler,
                count,
            )
            for sampler in samplers
            for count in streams
            for stages in stage_counts(min(arguments.devices, len(scenario.space)))
            for budget in budgets
        ),
        key=lambda row: (-row.outcome.passes_per_second, row.outcome.stages, *row[:3]),
    )
    if arguments.json:
        print(json.dumps([_as_json(row) for row in rows], indent=1))
    else:
        _print(rows)
    return 0


def stage_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _samplers(devices: int) -> str:
    return f"uniform,fair,spaced:{2 * devices}"


def _listed(option: str, text: str) -> list[str]:
    from naspipe.core.errors import ConfigError

    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(f"{option} {text!r:.80}: expected names with commas between")
    return list(dict.fromkeys(words))


def _count(option: str, text: str) -> int:
    from naspipe.core.errors import ConfigError

    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise ConfigError(f"{option} {text!r:.80}: expected whole numbers from 1 to 999")
    return int(text)


def _row(
    arguments: argparse.Namespace,
    scenario: Scenario,
    execution: Execution,
    sampler: str,
    streams: int,
) -> Row:
    from naspipe.sim.bottlenecks import bottlenecks
    from naspipe.sim.outcome import bound_of, outcome_of

    pipeline = scenario.pipeline(sampler, arguments.seed, arguments.steps, streams=streams)
    simulated = scenario.run(pipeline, execution)
    bound = bound_of(pipeline)
    outcome = outcome_of(simulated, pipeline, bound)
    reasons = bottlenecks(pipeline, scenario.space.labels, bound, simulated.plan, outcome)
    return Row(sampler, streams, execution.memory.budget or "none", outcome, reasons)


def _as_json(row: Row) -> dict[str, object]:
    return {
        "sampler": row.sampler,
        "streams": row.streams,
        "budget": row.budget,
        **row.outcome.as_dict(),
        "limits": [limit.text for limit in row.limits],
    }


_NAMES = (
    "sampler", "stages", "streams", "budget", "order", "subnets/s", "bubble", "bound", "above",
    "hits", "layers\nMiB", "passes\nMiB",
)  # fmt: skip
"""Of columns; those without anything known are left out."""


def _print(rows: list[Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("sampler", overflow="fold")
    columns = {name: list(cells) for name, *cells in zip(_NAMES, *map(_cells, rows), strict=True)}
    known = {name: cells for name, cells in columns.items() if any(cells)}
    for name in list(known)[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in zip(*known.values(), strict=True):
        table.add_row(*map(Text, cells))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(table)
    for kind in dict.fromkeys(row[:2] for row in rows):
        widest = max((r for r in rows if r[:2] == kind), key=lambda row: row.outcome.stages)
        streams = f", {widest.streams} streams," if widest.streams > 1 else ""
        head = f"{widest.sampler}{streams} on {widest.outcome.stages} stages is limited by"
        lines = [f"  {limit.text}" for limit in widest.limits] or ["  nothing that was looked for"]
        console.print(Text("\n".join([head, *lines])))


def _cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    return (
        row.sampler,
        str(outcome.stages),
        str(row.streams),
        row.budget,
        outcome.order,
        f"{outcome.passes_per_second:.3f}",
        f"{outcome.bubble_ratio:.3f}",
        f"{outcome.bound:.3f}",
        f"{outcome.distance:+.3f}",
        f"{outcome.hit_rate:.1%}",
        _mebibytes(max(use.layer_bytes for use in outcome.uses)),
        _mebibytes(max(use.activation_bytes for use in outcome.uses)),
    )


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f}" if count else ""
