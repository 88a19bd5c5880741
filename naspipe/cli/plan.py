"""Show what more stages, other samplers or memory budgets would give, best first.

Every row is a simulation under the same controllers as a real run's; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from naspipe.cli.display.plan_with_teacher import show_taught
from naspipe.cli.display.simulated_plans import WIDTH
from naspipe.cli.distilling.plan_blocks import is_student, show_blocks
from naspipe.cli.flags import add_flags, flags
from naspipe.cli.simulate import add_scenario_arguments, open_scenario
from naspipe.cli.teaching import teacher
from naspipe.core.config import Definition, Settings, apply_settings

if TYPE_CHECKING:
    from naspipe.core.config import Execution
    from naspipe.frontend.simulation.scenario import Scenario
    from naspipe.sim.bottlenecks import Bottleneck
    from naspipe.sim.outcome import Outcome
    from naspipe.sim.pipeline import Pipeline
    from naspipe.sim.simulation import SimulatedRun

_EXAMPLE = """\
examples:
  naspipe plan nlp.c1 --devices 8 --costs table5
  naspipe plan nlp.c3 --devices 4 --samplers uniform,fair,spaced:8 --budget none,3x
  naspipe plan nlp.c1 --devices 8 --costs table5 --passes one,accumulate:4,subnets:4
  naspipe plan cv.c1 --devices 8 --costs table5 --no-shared --json
  naspipe plan cnn --devices 4 --teacher runs/vit --passes accumulate:4,accumulate:8
  naspipe plan proxyless --devices 4 --teacher runs/mobile
  naspipe plan byol --devices 4 --momentum 0.99:1 --passes accumulate:4,accumulate:8

stages: of each group, where steps have passes that groups can share: 2 x 4 is two groups of four
bound: the least bubble that any schedule can have; above: how far this one is from it
costs: profiled ones are measured with as many processes at once as a row has and cores allow
memory: the most that one stage's layers occupy (with a budget) and its passes keep
"""


_TEACHING = ("teacher", "teacher_subnet", "teacher_top", "momentum")
"""Options that a plan with a teacher has."""


class Shape(NamedTuple):
    """How many groups of how many stages."""

    groups: int
    stages: int

    def __str__(self) -> str:
        return f"{self.groups} x {self.stages}" if self.groups > 1 else f"{self.stages}"


class Row(NamedTuple):
    """One simulated choice."""

    sampler: str
    passes: str
    streams: int
    shape: Shape
    partition: str
    budget: str
    outcome: Outcome
    limits: list[Bottleneck]
    lag: int | None
    """The least K of lag(K) that is enough; looked for on all devices in one group."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("space", metavar="SPACE", help="a space by name, or MODULE:ATTRIBUTE")
    parser.add_argument("--devices", type=int, default=8, metavar="N", help="at most (default 8)")
    add_flags(parser, flags(Definition, "steps"), {"steps": 200})
    parser.add_argument("--samplers", default="", metavar="NAMES", help="with commas between")
    parser.add_argument(
        "--passes", default="", metavar="KINDS", help="of steps, as one,accumulate:4,subnets:4"
    )
    parser.add_argument(
        "--partitions", default="", metavar="NAMES", help="as balanced,static; one row for each"
    )
    parser.add_argument("--streams", default="1", metavar="COUNTS", help="with commas between")
    parser.add_argument(
        "--budget", default="none", metavar="BUDGETS", help="as none,3x,512MiB: one row for each"
    )
    add_scenario_arguments(parser)
    teacher.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate every choice and print them; returns the exit status."""
    from naspipe.core.errors import ConfigError

    if not 1 <= arguments.devices <= 256:
        raise ConfigError(f"--devices {arguments.devices}: expected 1 to 256")
    if is_student(arguments.space) or any(getattr(arguments, each) for each in _TEACHING):
        show = show_blocks if is_student(arguments.space) else show_taught
        words = _listed("--passes", arguments.passes) if arguments.passes else []
        show(arguments, words, _counts(arguments.devices))
        return 0
    streams = [_count("--streams", word) for word in _listed("--streams", arguments.streams)]
    budgets = ["" if b == "none" else b for b in _listed("--budget", arguments.budget)]
    samplers = _listed("--samplers", arguments.samplers or _samplers(arguments.devices))
    # Sizes are looked at where any of the rows has a budget.
    scenario, execution = open_scenario(arguments, memory_budget=max(budgets))
    asked = arguments.passes or apply_settings(Settings(), arguments.set).recipe.passes
    kinds = {words: scenario.stepping(words) for words in _listed("--passes", asked)}
    partitions = _listed("--partitions", arguments.partitions or execution.pipeline.partition)
    rows = sorted(
        (
            _row(arguments, kinds[words], execution.changed(**how), (sampler, words, count))
            for sampler in samplers
            for words in kinds
            for count in streams
            for how in _ways(arguments.devices, kinds[words], partitions, budgets)
        ),
        key=lambda row: (-row.outcome.passes_per_second, row.outcome.stages, *row[:-3]),
    )
    if arguments.json:
        print(json.dumps([_as_json(row) for row in rows], indent=1))
    else:
        _print(rows)
    return 0


def _counts(devices: int) -> list[int]:
    """1, 2, 4, ... devices and all."""
    return sorted({devices, *(1 << power for power in range(devices.bit_length()))})


def shapes(devices: int, num_blocks: int, passes: int) -> list[Shape]:
    """Groups and stages on 1, 2, 4, ... devices and on all; each group has a pass of every step."""
    return [
        Shape(groups, min(count // groups, num_blocks))
        for count in _counts(devices)
        for groups in range(1, min(count, passes) + 1)
        if count % groups == 0 and (groups == 1 or count // groups <= num_blocks)
    ]


def _ways(
    devices: int, scenario: Scenario, partitions: Sequence[str], budgets: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Settings of the execution."""
    passes = 1 if scenario.steps.distills else scenario.steps.passes
    for groups, stages in dict.fromkeys(shapes(devices, len(scenario.space), passes)):
        for partition in partitions if stages > 1 else partitions[:1]:
            for budget in budgets:
                yield {
                    "groups": groups, "stages": stages, "partition": partition,
                    "memory_budget": budget,
                }  # fmt: skip


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
    stream: tuple[str, str, int],
) -> Row:
    """One simulation; ``stream`` is a sampler, what a step is made of, and how many streams."""
    from naspipe.frontend.simulation.lag_needed import lag_needed
    from naspipe.sim.bottlenecks import bottlenecks
    from naspipe.sim.outcome import bound_of, outcome_of

    (sampler, passes, streams), way = stream, execution.pipeline
    steps = max(1, arguments.steps // scenario.steps.passes)

    def simulated(scenario: Scenario, how: Execution) -> tuple[Pipeline, SimulatedRun]:
        pipeline = scenario.pipeline(sampler, arguments.seed, steps, streams=streams)
        return pipeline, scenario.run(pipeline, how)

    def rate(scenario: Scenario) -> float:
        how = execution.changed(order=found.plan.order)
        return simulated(scenario, how)[1].summary.passes_per_second

    scenario = scenario.on_workers(execution.workers)
    pipeline, found = simulated(scenario, execution)
    bound = bound_of(pipeline)
    outcome = outcome_of(found, pipeline, bound)
    labels, budget = scenario.space.labels, execution.memory.budget or "none"
    reasons = bottlenecks(pipeline, labels, bound, found.plan, outcome, way.groups)
    lag = None
    if 1 < way.stages == min(arguments.devices, len(labels)):
        lag = lag_needed(scenario, way.stages, rate)
    shape = Shape(way.groups, way.stages)
    return Row(sampler, passes, streams, shape, way.partition, budget, outcome, reasons, lag)


def _as_json(row: Row) -> dict[str, object]:
    return {
        "sampler": row.sampler,
        "passes": row.passes,
        "groups": row.shape.groups,
        "stages_per_group": row.shape.stages,
        "partition": row.partition,
        "streams": row.streams,
        "budget": row.budget,
        **row.outcome.as_dict(),
        "limits": [limit.text for limit in row.limits],
        "lag_needed": row.lag,
    }


_NAMES = (
    "sampler", "passes", "streams", "stages", "cuts", "budget", "order", "subnets/s", "bubble",
    "bound", "above", "hits", "layers\nMiB", "passes\nMiB",
)  # fmt: skip
"""Of columns; those without anything known are left out."""
_CHOSEN = ("passes", "streams", "cuts", "budget", "hits")
"""Columns that are left out where all rows are alike."""


def _print(rows: list[Row]) -> None:
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
        f"{outcome.bound:.3f}",
        f"{outcome.distance:+.3f}",
        f"{outcome.hit_rate:.1%}",
        _mebibytes(max(use.layer_bytes for use in outcome.uses)),
        _mebibytes(max(use.activation_bytes for use in outcome.uses)),
    )


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f}" if count else ""
