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
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_flags, add_options, flags
from naspipe.cli.output import cost_figures, in_cells, print_table
from naspipe.cli.search import add_cost_limits
from naspipe.cli.sources import add_held_out
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from naspipe.api.distill import Blockwise
    from naspipe.jobs.workload import Batches
    from naspipe.search.combination import Combination
    from naspipe.search.scores import Scores
    from naspipe.search.search_directory import Search


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
    parser.epilog = _EXAMPLE
    add_options(parser, "run RUN  run directory of naspipe distill")
    rating = parser.add_argument_group("rating of paths")
    add_options(
        rating,
        """
        --measure NAME       measure of the distance to the teacher's output: l1, l2, loss or
            MODULE:FUNCTION (default: l1)
        --last-measure NAME  measure for the last block (default: loss, which is the block's own)
        --budget N           maximum number of paths to rate in each block; a block with fewer is
            rated completely (default: 2000)
        --strategy NAME      strategy that proposes the paths of a block with more of them
            (default: random)
        --seed K             seed of the strategy (default: 0)
        --calibrate C        number of training batches from which running statistics are
            recomputed; 0 to use those of the run (default: 4)
        """,
    )
    add_held_out(rating)
    add_options(
        rating, "--ratings NAME  reuse the ratings of an earlier call: their name, or newest"
    )
    rating.add_argument("--name", help="name of the ratings (default: the next number)")
    add_flags(rating, flags(Execution, "stages", "device", "memory_budget"), {})
    add_cost_limits(parser.add_argument_group("limits on the cost of the network"))
    output = parser.add_argument_group("output")
    add_options(
        output,
        """
        -o --output DIR  also export the network to this directory
        --onnx           also write model.onnx
        """,
    )
    add_data_place(output)
    add_options(output, "--quiet  do not show progress")


def read_limits(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the limits that are given, by the names of costs."""
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
    return {name: limit for name, limit in asdict(cost_limits(arguments)).items() if limit}


# The command


def run(arguments: argparse.Namespace) -> int:
    """Combine; print the tables, the choices and, with ``-o``, the directory on stdout."""
    from naspipe.api.block_rating import combine_blocks
    from naspipe.cli.distill_sources import read_distilled
    from naspipe.export.composed import export_blocks, text_of, validate_blocks
    from naspipe.export.exporter import check_place
    from naspipe.inputs.held_out import judged_by

    limits = read_limits(arguments)
    distilled = read_distilled(arguments.run, arguments.data_dir)
    found, output = distilled.found, arguments.output
    if output:
        check_place(output, found.data, arguments.onnx)
    held_out = distilled.held_out(arguments.split, arguments.validation, arguments.data_dir)
    if arguments.ratings:
        ratings = found.ratings("" if arguments.ratings == NEWEST else arguments.ratings)
    else:
        ratings = _rate(arguments, found, held_out)
    best = combine_blocks(ratings, limits)
    calibrate = ratings[0].calibration if arguments.calibrate is None else arguments.calibrate
    _, count = judged_by(held_out, held_out, arguments.validate)
    scores: Scores | None
    if output is None:
        scores = validate_blocks(
            found,
            best.choices,
            held_out,
            loss=distilled.loss,
            calibrate=calibrate,
            validate=count,
        )
    else:
        scores = export_blocks(
            found,
            best.choices,
            output,
            held_out=held_out,
            loss=distilled.loss,
            calibrate=calibrate,
            validate=count,
            onnx=arguments.onnx,
        ).scores
    print_combination(ratings, best, scores)
    text = text_of(best.choices)
    print(f"choices {text}")
    if output:
        print(output)
    elif not arguments.quiet:
        next_one = f"naspipe export {arguments.run} --subnet '{text}' -o DIR"
        print(f"next: {next_one}", file=sys.stderr)
    return 0


def _rate(arguments: argparse.Namespace, found: Blockwise, held_out: Batches) -> tuple[Search, ...]:
    from naspipe.api.block_rating import AT_MOST, OWN, rate_blocks
    from naspipe.api.progress import RatingProgress
    from naspipe.cli.options import given
    from naspipe.config.user_code import import_attribute

    def measure(name: str) -> Any:
        return import_attribute(name) if ":" in name else name

    budget = AT_MOST if arguments.budget is None else arguments.budget
    counts = [math.prod(run.space.drawn_counts) for run in found.blocks]
    total = sum(min(count, budget) for count in counts)
    how = given(Execution, arguments)
    with RatingProgress(f"paths of {arguments.run}", total, arguments.quiet) as progress:
        ratings = rate_blocks(
            found,
            held_out,
            measure=measure(arguments.measure or "l1"),
            last_measure=measure(arguments.last_measure or OWN),
            calibrate=4 if arguments.calibrate is None else arguments.calibrate,
            validate=arguments.validate,
            at_most=budget,
            strategy=arguments.strategy or "random",
            seed=arguments.seed or 0,
            stages=how.pop("stages", 1),
            execution=how,
            name=arguments.name or "",
            observer=progress,
        )
    if not arguments.quiet:
        print(f"naspipe: rated; --ratings {ratings[0].name} takes these again", file=sys.stderr)
    return ratings


# The table


def print_combination(ratings: Sequence[Search], best: Combination, scores: Scores | None) -> None:
    """Print the path of each block, their sums, and the ``scores`` of the network, if known."""
    costs = ("flops", "params", "latency_ms")
    rows = []
    for number, (rating, choices) in enumerate(zip(ratings, best.choices, strict=True)):
        ranked = rating.ranked()
        place = next(n for n, each in enumerate(ranked, 1) if each.choices == choices)
        found = ranked[place - 1]
        rows.append(
            (
                str(number),
                str(len(rating.candidates)),
                str(place),
                f"{found.scores.loss:.4f}",
                *in_cells(cost_figures(*(getattr(found.cost, name) for name in costs))),
                str(rating.manifest["definition"]["loss"]).rpartition(".")[2],
                ",".join(map(str, choices)),
            )
        )
    sums = in_cells(cost_figures(*(best.costs[name] for name in costs)))
    rows.append(("all", "", "", f"{best.score:.4f}", *sums, "", ""))
    heads = ["block", "rated", "place", "score", "MFLOPs", "params", "ms", "measure", "choices"]
    console = print_table(heads, rows, left=("measure", "choices"), has_lines=False)
    if scores is not None:
        shares = (("top-1", scores.top1), ("top-5", scores.top5))
        said = [f"{name} {share * 100:.2f}" for name, share in shares if share == share]
        console.print(f"the network: {'  '.join([f'loss {scores.loss:.4f}', *said])}")
