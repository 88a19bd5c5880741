"""Rate the paths of each block of a blockwise distillation, and combine one of each into a network.

The score of a path is the distance of its output from that of its teacher's block on held-out
batches. The combination with the lowest sum of scores among all combinations within the cost limits
is found exactly. It is then evaluated as a whole and, with --output, exported. Ratings are stored
in the runs of the blocks and are bit-identical on any number of stages.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_flags, flags
from naspipe.cli.search import add_cost_limits
from naspipe.cli.sources import add_held_out
from naspipe.cli.teacher_plans import WIDTH
from naspipe.config.definition import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from naspipe.api.distill import Blockwise
    from naspipe.cli.distill_sources import Distilled
    from naspipe.cli.options import Options
    from naspipe.jobs.workload import Batches
    from naspipe.search.combination import Combination
    from naspipe.search.scores import Scores
    from naspipe.search.search_directory import Candidate, Search


# The arguments


NEWEST = "newest"

_EXAMPLE = """\
examples:
  naspipe combine runs/student --stages 2
  naspipe combine runs/student --max-params 60k --max-flops 20M -o exported
  naspipe combine runs/student --ratings newest --max-params 40k     without rating again
  naspipe combine runs/student --budget 500 --measure l2 --name half
"""

_OF_RATINGS = ("measure", "last_measure", "budget", "strategy", "seed", "name")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory of naspipe distill")
    _add_rating(parser.add_argument_group("rating of paths"))
    add_cost_limits(parser.add_argument_group("limits on the cost of the network"))
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also export the network to this directory"
    )
    group.add_argument("--onnx", action="store_true", help="also write model.onnx")
    add_data_place(group)
    group.add_argument("--quiet", action="store_true", help="do not show progress")


def _add_rating(parser: Options) -> None:
    parser.add_argument(
        "--measure",
        metavar="NAME",
        help="measure of the distance to the teacher's output: l1, "
        "l2, loss or MODULE:FUNCTION (default: l1)",
    )
    parser.add_argument(
        "--last-measure",
        metavar="NAME",
        help="measure for the last block (default: loss, which is the block's own)",
    )
    parser.add_argument(
        "--budget", type=int, metavar="N",
        help="maximum number of paths to rate in each block; a block with fewer is rated "
        "completely (default: 2000)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", metavar="NAME",
        help="strategy that proposes the paths of a block with more of them (default: random)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="K", help="seed of the strategy (default: 0)")
    parser.add_argument(
        "--calibrate", type=int, metavar="C",
        help="number of training batches from which running statistics are recomputed; 0 to use "
        "those of the run (default: 4)",
    )  # fmt: skip
    add_held_out(parser)
    parser.add_argument(
        "--ratings",
        metavar="NAME",
        help=f"reuse the ratings of an earlier call: their name, or {NEWEST}",
    )
    parser.add_argument("--name", help="name of the ratings (default: the next number)")
    add_flags(parser, flags(Execution, "stages", "device", "memory_budget"), {})


def read_limits(arguments: argparse.Namespace) -> dict[str, float]:
    """The limits that are given, by the names of costs.

    Raises:
        ConfigError: for a limit that is none, or options that do not go together.
    """
    from naspipe.cli.search import cost_limits
    from naspipe.config.errors import ConfigError

    unused = [name for name in _OF_RATINGS if getattr(arguments, name) is not None]
    if arguments.ratings and unused:
        raise ConfigError(
            f"--{unused[0].replace('_', '-')}: expected nothing about how paths are rated beside "
            f"--ratings, which takes them as they were; leave one of them out"
        )
    if arguments.onnx and not arguments.output:
        raise ConfigError("--onnx: expected -o DIR with it, found none")
    limits = cost_limits(arguments)
    named = {name: getattr(limits, name) for name in ("flops", "params", "latency_ms")}
    return {name: limit for name, limit in named.items() if limit}


def measure_of(name: str) -> Any:
    """A measure by name, or a user's own function.

    Raises:
        ConfigError: when it cannot be found.
    """
    from naspipe.config.user_code import import_attribute

    return import_attribute(name) if ":" in name else name


# The command


def run(arguments: argparse.Namespace) -> int:
    """Combine; prints the tables, the choices and, with ``-o``, the directory on stdout."""
    from naspipe.api.block_rating import combine_blocks
    from naspipe.cli.distill_sources import read_distilled
    from naspipe.export.composed import text_of
    from naspipe.export.exporter import check_place

    limits = read_limits(arguments)
    distilled = read_distilled(arguments.run, arguments.data_dir)
    if arguments.output:
        check_place(arguments.output, distilled.found.data, arguments.onnx)
    held_out = distilled.held_out(arguments.split, arguments.validation, arguments.data_dir)
    ratings = _ratings(arguments, distilled, held_out)
    best = combine_blocks(ratings, limits)
    scores = _whole(arguments, distilled, held_out, best, ratings)
    print_combination(ratings, best, scores)
    text = text_of(best.choices)
    print(f"choices {text}")
    if arguments.output:
        print(arguments.output)
    elif not arguments.quiet:
        next_one = f"naspipe export {arguments.run} --subnet '{text}' -o DIR"
        print(f"next: {next_one}", file=sys.stderr)
    return 0


def _ratings(
    arguments: argparse.Namespace, distilled: Distilled, held_out: Batches
) -> Sequence[Search]:
    """Those of an earlier call, where they are asked for; otherwise new ones."""
    from naspipe.api.block_rating import AT_MOST, OWN, rate_blocks
    from naspipe.cli.options import given

    found, budget = distilled.found, arguments.budget
    if arguments.ratings:
        return found.ratings("" if arguments.ratings == NEWEST else arguments.ratings)
    budget = AT_MOST if budget is None else budget
    how = given(Execution, arguments)
    with RatingProgress(f"paths of {arguments.run}", found, budget, arguments.quiet) as progress:
        ratings = rate_blocks(
            found, held_out,
            measure=measure_of(arguments.measure or "l1"),
            last_measure=measure_of(arguments.last_measure or OWN),
            calibrate=4 if arguments.calibrate is None else arguments.calibrate,
            validate=arguments.validate,
            at_most=budget, strategy=arguments.strategy or "random", seed=arguments.seed or 0,
            stages=how.pop("stages", 1), execution=how, name=arguments.name or "",
            observer=progress,
        )  # fmt: skip
    if not arguments.quiet:
        print(f"naspipe: rated; --ratings {ratings[0].name} takes these again", file=sys.stderr)
    return ratings


def _whole(
    arguments: argparse.Namespace,
    distilled: Distilled,
    held_out: Batches,
    best: Combination,
    ratings: Sequence[Search],
) -> Scores | None:
    """How the network does whole, and its files where they are asked for."""
    from naspipe.export.composed import export_blocks, validate_blocks
    from naspipe.inputs.held_out import judged_by

    usual = ratings[0].calibration if arguments.calibrate is None else arguments.calibrate
    _, count = judged_by(held_out, held_out, arguments.validate)
    found, loss = distilled.found, distilled.loss
    if arguments.output is None:
        return validate_blocks(
            found, best.choices, held_out, loss=loss, calibrate=usual, validate=count
        )
    return export_blocks(
        found, best.choices, arguments.output,
        held_out=held_out, loss=loss, calibrate=usual, validate=count, onnx=arguments.onnx,
    ).scores  # fmt: skip


# Progress, and the table


_LINE_EVERY_SECONDS = 10.0


class RatingProgress:
    """Shows paths, speed and the best score of the block that is rated; a context manager.

    It implements ``SearchObserver``.

    Args:
        title: of the work.
        found: whose blocks.
        budget: the most paths of a block.
        is_quiet: show nothing.
    """

    def __init__(self, title: str, found: Blockwise, budget: int, is_quiet: bool) -> None:
        from naspipe.api.progress import Bar

        counts = [math.prod(run.space.drawn_counts) for run in found.blocks]
        total = sum(min(count, budget) for count in counts)
        self._bar = Bar(title, total, is_quiet, _LINE_EVERY_SECONDS)
        self._done, self._block = 0, -1
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """The next path is rated; the first of a block is its number 0."""
        self._block += candidate.sequence_id == 0
        if not self._bar.is_shown:
            self._start = time.monotonic()
            self._bar.show()
        seconds = time.monotonic() - self._start
        numbers = f"block {self._block}"
        if seconds > 0 and self._done:
            numbers += f"  {self._done / seconds:.2f} paths/s"
        if best is not None:
            numbers += f"  best {best.scores.loss:.4f}"
        self._done += 1
        self._bar.update(self._done, numbers)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Shares of stages are not shown."""


def print_combination(ratings: Sequence[Search], best: Combination, scores: Scores | None) -> None:
    """The path of each block, their sums, and how the network does whole.

    Args:
        ratings: of each block.
        best: one path of each.
        scores: of the network; None where it was not judged.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(ratings, best))
    if scores is not None:
        shares = (("top-1", scores.top1), ("top-5", scores.top5))
        said = [f"{name} {share * 100:.2f}" for name, share in shares if share == share]
        console.print(f"the network: {'  '.join([f'loss {scores.loss:.4f}', *said])}")


def _table(ratings: Sequence[Search], best: Combination) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("block", "rated", "place", "score", "MFLOPs", "params", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("measure", "choices"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for number, (rating, choices) in enumerate(zip(ratings, best.choices, strict=True)):
        ranked = rating.ranked()
        place = next(n for n, each in enumerate(ranked, 1) if each.choices == choices)
        found = ranked[place - 1]
        measure = str(rating.manifest["definition"]["loss"]).rpartition(".")[2]
        table.add_row(
            str(number), str(len(rating.candidates)), str(place), f"{found.scores.loss:.4f}",
            *_costs(found.cost.flops, found.cost.params, found.cost.latency_ms),
            measure, ",".join(map(str, choices)),
        )  # fmt: skip
    costs = _costs(*(best.costs[name] for name in ("flops", "params", "latency_ms")))
    table.add_row("all", "", "", f"{best.score:.4f}", *costs, "", "")
    return table


def _costs(flops: float, params: float, latency_ms: float) -> list[str]:
    shown = ((flops / 1e6, ".2f"), (params, ",.0f"), (latency_ms, ".2f"))
    return ["" if value != value else format(value, form) for value, form in shown]
