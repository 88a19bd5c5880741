"""Rate the paths of each block of a blockwise distillation, and combine one of each into a network.

A path is judged by how near it comes to what its teacher's block makes of held-out batches. Of all
combinations whose costs keep the limits, the one with the least sum of scores is found, exactly;
it is judged whole, and exported. Ratings are left in the blocks' runs: the same bits on any number
of stages.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from naspipe.cli.distilling.combine_arguments import add_arguments as add_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from naspipe.cli.distilling.found import Distilled
    from naspipe.runtime.jobs.workload import Batches
    from naspipe.search.combination import Combination
    from naspipe.search.scores import Scores
    from naspipe.search.search_directory import Search


def run(arguments: argparse.Namespace) -> int:
    """Combine; prints the tables, the choices and, with ``-o``, the directory on stdout."""
    from naspipe.cli.display.combined_blocks import print_combination
    from naspipe.cli.distilling.combine_arguments import read_limits
    from naspipe.cli.distilling.found import read_distilled
    from naspipe.export.composed import text_of
    from naspipe.export.exporter import check_place
    from naspipe.frontend.search.block_rating import combine_blocks

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
    from naspipe.cli.display.combined_blocks import RatingProgress
    from naspipe.cli.distilling.combine_arguments import NEWEST, measure_of
    from naspipe.cli.flags import given
    from naspipe.config.definition import Execution
    from naspipe.frontend.search.block_rating import AT_MOST, OWN, rate_blocks

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
    from naspipe.frontend.given.held_out import judged_by

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
