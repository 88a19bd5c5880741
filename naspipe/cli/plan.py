"""Compare numbers of stages, samplers and memory budgets by simulation, best first.

Each row is a simulation with the same stage controllers as in a real run; nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from naspipe.cli import teacher
from naspipe.cli.options import add_flags, add_options, flags
from naspipe.cli.output import print_table
from naspipe.cli.simulate import add_scenario_arguments, open_scenario
from naspipe.cli.teacher_plans import is_student, show_blocks, show_taught
from naspipe.config.definition import Definition, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.plan.costs import Shape, counts, shapes

if TYPE_CHECKING:
    from naspipe.api.simulate import Scenario
    from naspipe.config.execution import Execution
    from naspipe.plan.bottlenecks import Bottleneck
    from naspipe.plan.pipeline import Pipeline
    from naspipe.plan.simulation import BackwardBounds, Outcome, SimulatedRun


# What was simulated: rows in the order of simulation, the table, and the bottlenecks


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
    """With whole and with split backwards; None where the latter is unknown or impossible."""
    limits: list[Bottleneck]
    lag: int | None
    """The least sufficient K of lag(K); searched for on all devices in one group."""


def as_json(row: Row) -> dict[str, object]:
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
"""The heads of the columns; columns without known values are left out."""
_CHOSEN = ("passes", "streams", "cuts", "budget", "hits")
"""Columns that are left out if all rows have the same value."""


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table, best first, and the bottlenecks of the most stages of each kind."""
    from rich.text import Text

    columns = {name: list(cells) for name, *cells in zip(_NAMES, *map(_cells, rows), strict=True)}
    known = {
        name: cells
        for name, cells in columns.items()
        if any(cells) and (name not in _CHOSEN or len(set(cells)) > 1)
    }
    cells = list(zip(*known.values(), strict=True))
    console = print_table(list(known), cells, left=("sampler",))
    for kind in dict.fromkeys(row[:3] for row in rows):
        widest = max((r for r in rows if r[:3] == kind), key=lambda row: row.outcome.stages)
        streams = f", {widest.streams} streams," if widest.streams > 1 else ""
        passes = f" {widest.passes}" if widest.passes != "one" else ""
        head = f"{widest.sampler}{passes}{streams} on {widest.shape} stages is limited by"
        lines = [f"  {limit.text}" for limit in widest.limits] or ["  nothing that was looked for"]
        if widest.lag is not None:
            lines.append(f"  from lag({widest.lag}) on a longer lag does not make it faster")
        console.print(Text("\n".join([head, *lines])))


def _cells(row: Row) -> tuple[str, ...]:
    def mebibytes(count: int) -> str:
        return f"{count / (1 << 20):.1f}" if count else ""

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
        mebibytes(max(use.layer_bytes for use in outcome.uses)),
        mebibytes(max(use.activation_bytes for use in outcome.uses)),
    )


# The command


_EXAMPLE = """\
examples:
  naspipe plan nlp.c1 --devices 8 --costs table5
  naspipe plan nlp.c3 --devices 4 --samplers uniform,fair,spaced:8 --budget none,3x
  naspipe plan nlp.c1 --devices 8 --costs table5 --passes one,accumulate:4,subnets:4
  naspipe plan cv.c1 --devices 8 --costs table5 --no-shared --json
  naspipe plan cnn --devices 4 --teacher runs/vit --passes accumulate:4,accumulate:8
  naspipe plan proxyless --devices 4 --teacher runs/mobile
  naspipe plan byol --devices 4 --momentum 0.99:1 --passes accumulate:4,accumulate:8

stages: of each group, if steps have passes that groups can share: 2 x 4 is two groups of four
bound: lowest bubble ratio that any schedule can have, with whole backwards and, if the costs of
  their parts are known, with split backwards (backward=split); above: difference between the bubble
  ratio of the row and its own bound
costs: profiled costs are measured with as many concurrent processes as the row uses, up to the
  number that the cores allow
memory: maximum that the layers (with a budget) and the passes of one stage occupy
"""


_TEACHING = ("teacher", "teacher_subnet", "teacher_top", "momentum")
"""Options of a plan with a teacher."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        space SPACE      name of a space, or MODULE:ATTRIBUTE
        --devices N [8]  maximum number of devices
        """,
    )
    add_flags(parser, flags(Definition, "steps"), {"steps": 200})
    add_options(
        parser,
        """
        --samplers NAMES []      comma-separated list of samplers; one row for each
        --passes KINDS []        comma-separated list of passes that make up a step, such as
            one,accumulate:4,subnets:4; one row for each
        --partitions NAMES []    comma-separated list of partitions, such as balanced,static; one
            row for each
        --streams COUNTS [1]     comma-separated list of numbers of streams
        --budget BUDGETS [none]  comma-separated list of memory budgets, such as none,3x,512MiB; one
            row for each
        """,
        streams=str,
    )
    add_scenario_arguments(parser)
    teacher.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate every choice and print them; return the exit status."""
    if not 1 <= arguments.devices <= 256:
        raise ConfigError(f"--devices {arguments.devices}: expected 1 to 256")
    recipe = apply_settings(Settings(), arguments.set).recipe
    if is_student(arguments.space) or any(getattr(arguments, each) for each in _TEACHING):
        show = show_blocks if is_student(arguments.space) else show_taught
        if recipe.steps.probes:
            raise ConfigError(
                f"probes={recipe.probes}: expected none with a teacher; leave probes out"
            )
        words = _listed("--passes", arguments.passes) if arguments.passes else []
        show(arguments, words, counts(arguments.devices))
        return 0
    streams = [_count("--streams", word) for word in _listed("--streams", arguments.streams)]
    budgets = ["" if b == "none" else b for b in _listed("--budget", arguments.budget)]
    samplers = _listed(
        "--samplers", arguments.samplers or f"uniform,fair,spaced:{2 * arguments.devices}"
    )
    # Sizes are needed if any of the rows has a budget.
    scenario, execution = open_scenario(arguments, memory_budget=max(budgets))
    listed = _listed("--passes", arguments.passes or recipe.passes)
    kinds = {words: scenario.stepping(words, recipe.probes) for words in listed}
    partitions = _listed("--partitions", arguments.partitions or execution.pipeline.partition)
    choices = [
        _Choice(
            kinds[words].on_workers(way.workers),
            way,
            (sampler, words, count),
            arguments.seed,
            arguments.steps,
        )
        for sampler in samplers
        for words in kinds
        for count in streams
        for how in _ways(arguments.devices, kinds[words], partitions, budgets)
        for way in [execution.changed(**how)]
    ]
    choices.sort(key=lambda choice: choice.execution.workers)  # few stages are simulated faster
    rows = _rows(choices, arguments.devices, arguments.json)
    if arguments.json:
        print(json.dumps([as_json(row) for row in rows], indent=1))
    else:
        print_rows(rows)
    return 0


def _ways(
    devices: int, scenario: Scenario, partitions: Sequence[str], budgets: Sequence[str]
) -> Iterator[dict[str, Any]]:
    steps = scenario.steps
    passes = 1 if steps.distills or steps.probes else steps.passes
    for groups, stages in shapes(devices, len(scenario.space), passes):
        how = {"groups": groups, "stages": stages}
        for partition in partitions if stages > 1 else partitions[:1]:
            for budget in budgets:
                yield how | {"partition": partition, "memory_budget": budget}


def _listed(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(f"{option} {text!r:.80}: expected names with commas between")
    return list(dict.fromkeys(words))


def _count(option: str, text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise ConfigError(f"{option} {text!r:.80}: expected whole numbers from 1 to 999")
    return int(text)


class _Choice(NamedTuple):
    """One way to train, which is to be simulated."""

    scenario: Scenario
    execution: Execution
    stream: tuple[str, str, int]
    """The sampler, the kind of steps, and the number of streams."""
    seed: int
    passes: int
    """Number of passes to simulate."""

    def simulated(
        self, scenario: Scenario, execution: Execution, passes: int
    ) -> tuple[Pipeline, SimulatedRun]:
        """Simulate this many passes, once lags have grown."""
        from naspipe.plan.pipeline import with_grown_lags

        sampler, _, streams = self.stream
        steps = max(1, passes // scenario.steps.passes)
        pipeline = with_grown_lags(scenario.pipeline(sampler, self.seed, steps, streams=streams))
        return pipeline, scenario.run(pipeline, execution)

    def row(self) -> Row:
        """Return the row, without the sufficient lag."""
        from naspipe.plan.bottlenecks import bottlenecks
        from naspipe.plan.pipeline import as_planned
        from naspipe.plan.simulation import backward_bounds, bound_of, outcome_of

        way, (sampler, passes, streams) = self.execution.pipeline, self.stream
        pipeline, found = self.simulated(self.scenario, self.execution, self.passes)
        bound = bound_of(as_planned(pipeline, found.plan))
        bounds = backward_bounds(pipeline)
        outcome = outcome_of(found, pipeline, bound)
        labels, budget = self.scenario.space.labels, self.execution.memory.budget or "none"
        reasons = bottlenecks(pipeline, labels, bound, found.plan, outcome, way.groups)
        shape = Shape(way.groups, way.stages)
        partition = way.partition
        if partition == "auto":
            partition = "rotated" if found.plan.chosen else "balanced"
        return Row(
            sampler, passes, streams, shape, partition, budget, outcome, bounds, reasons, None
        )

    def lag(self, row: Row) -> int | None:
        """Return the least sufficient K, on the first passes, with the order of the row."""
        from naspipe.api.chosen_stages import lag_needed
        from naspipe.plan.simulation import PREVIEW_SUBNETS

        how = self.execution.changed(order=row.outcome.order)
        shown = min(self.passes, PREVIEW_SUBNETS)

        def rate(scenario: Scenario) -> float:
            return self.simulated(scenario, how, shown)[1].summary.passes_per_second

        return lag_needed(self.scenario, row.shape.stages, rate)


def _rows(choices: Sequence[_Choice], devices: int, is_quiet: bool) -> list[Row]:
    """Return all rows, the best first; the widest ones have the sufficient lag.

    Results are reported on stderr while the rest is simulated.
    """
    from naspipe.api.progress import Bar

    def wants_lag(choice: _Choice) -> bool:
        return 1 < choice.execution.pipeline.stages == min(devices, len(choice.scenario.space))

    rows = []
    with Bar("simulating", len(choices) + sum(map(wants_lag, choices)), is_quiet, 30.0) as bar:
        bar.show()
        for done, choice in enumerate(choices, 1):
            row = choice.row()
            rows.append(row)
            kind = " ".join(filter(None, [row.sampler, "" if row.passes == "one" else row.passes]))
            streams = f", {row.streams} streams" if row.streams > 1 else ""
            budget = f", budget {row.budget}" if row.budget != "none" else ""
            bar.say(
                f"{kind}, stages {row.shape}{streams}{budget}: "
                f"{row.outcome.passes_per_second:.3f} subnets/s, bubble "
                f"{row.outcome.bubble_ratio:.3f}"
            )
            bar.update(done, "")
        wanting = [place for place, choice in enumerate(choices) if wants_lag(choice)]
        for done, place in enumerate(wanting, len(choices) + 1):
            rows[place] = rows[place]._replace(lag=choices[place].lag(rows[place]))
            bar.update(done, "")
    return sorted(
        rows, key=lambda row: (-row.outcome.passes_per_second, row.outcome.stages, *row[:-4])
    )
