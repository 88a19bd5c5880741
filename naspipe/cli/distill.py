"""Teach each block of a trained network to a student block of its own, side by side.

Student block i is called with what the teacher's block i - 1 makes of a batch, and learns what the
teacher's block i makes of it. Each is a run of its own, below the run directory: block-0, block-1,
... Their bits are those of a plain loop, on any number of stages.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from naspipe.cli.distilling.distill_arguments import add_arguments as add_arguments

if TYPE_CHECKING:
    from naspipe.cli.distilling.asked import Asked
    from naspipe.frontend.training.distilled import Blockwise


def run(arguments: argparse.Namespace) -> int:
    """Distil; prints the run directory of each block on stdout."""
    from naspipe.cli.distilling.asked import read_asked, read_resumed
    from naspipe.core.errors import ConfigError, RunInterruptedError
    from naspipe.runtime.processes.rendezvous import Worker

    if Worker.find() is not None:
        raise ConfigError("naspipe distill: expected one machine, found torchrun's workers of it")
    asked = read_resumed(arguments) if arguments.resume else read_asked(arguments)
    try:
        found = _distilled(asked, arguments)
    except RunInterruptedError as error:
        said = str(error).partition("; go on with")[0]
        raise RunInterruptedError(
            error.signal_number, f"{said}; go on with: naspipe distill --resume {asked.path}"
        ) from None
    places = [str(each.directory.path) for each in found.blocks]
    print("\n".join(places))
    if not arguments.quiet:
        page = asked.path / "report.html"
        print(f"next: naspipe report {' '.join(places)} -o {page}", file=sys.stderr)
    return 0


def _distilled(asked: Asked, arguments: argparse.Namespace) -> Blockwise:
    from naspipe.cli.display.training_progress import TrainingProgress
    from naspipe.cli.distilling.found import find
    from naspipe.core.config import Recipe
    from naspipe.frontend.training.distillation import distill_blockwise

    teachers, students, data = find(asked.source, arguments.data_dir)
    stages = asked.execution.get("stages", 1)
    title = f"{asked.source.student} on {stages} stage{'s' if stages > 1 else ''}"
    passes = asked.recipe.steps.passes
    count = len(teachers) * asked.steps * passes
    unit = "passes" if passes > 1 else "steps"
    with TrainingProgress(title, count, arguments.quiet, arguments.log_every, unit) as progress:
        return distill_blockwise(
            teachers,
            students.blocks,
            data,
            steps=asked.steps,
            loss=students.loss,
            last_loss=students.last_loss,
            seed=asked.seed,
            sampler=asked.sampler,
            recipe={each.name: getattr(asked.recipe, each.name) for each in fields(Recipe)},
            execution={key: each for key, each in asked.execution.items() if key != "stages"},
            stages=stages,
            run_dir=asked.path,
            resume=arguments.resume is not None,
            observer=progress,
            source=asdict(asked.source),
        )
