"""Distil each block of a trained network into a student block of its own, all blocks in parallel.

Student block i receives the output of the teacher's block i - 1 for a batch, and learns to
reproduce the output of the teacher's block i. Each student block is a separate run in a
subdirectory of the run directory: block-0, block-1, ... The results are bit-identical to those of a
plain loop, on any number of stages.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from naspipe.cli.distill_sources import add_arguments as add_arguments
from naspipe.cli.output import as_json, tell
from naspipe.cli.output import trained as described

if TYPE_CHECKING:
    from naspipe.api.training import Training
    from naspipe.cli.distill_sources import Asked
    from naspipe.launch.hosts import Worker


def run(arguments: argparse.Namespace) -> int:
    """Distil; prints the run directory of each block. Under torchrun, this is one of its workers.

    Each worker makes all streams for itself; the first one alone shows progress and results.
    """
    from naspipe.api.workers import refuse, train_as_worker
    from naspipe.config.errors import ConfigError
    from naspipe.launch.hosts import Worker

    worker = Worker.find()
    is_first = worker is None or worker.rank == 0
    with ExitStack() as shown:
        try:
            asked = _asked(arguments, worker)
            training = _training(asked, arguments, shown)
        except ConfigError as error:
            if worker is not None:
                refuse(worker, str(error))
            raise
        if worker is None:
            training.run()
        else:
            has_place = bool(arguments.resume or arguments.run_dir)
            train_as_worker(training, worker, has_place=has_place)
    trained = list(zip(training.workloads, training.directories, strict=True))
    places = [str(directory.path) for workload, directory in trained if workload.is_trained]
    if is_first:
        kept = (directory for workload, directory in trained if workload.is_trained)
        tell(as_json(described(kept)) if arguments.json else "\n".join(places))
    if is_first and not arguments.quiet:
        page = asked.path / "report.html"
        print(f"next: naspipe report {' '.join(places)} -o {page}", file=sys.stderr)
    return 0


def training_of(arguments: argparse.Namespace, stack: ExitStack) -> Training:
    """The distillation that a command line defines; ``stack`` holds what shows its progress."""
    return _training(_asked(arguments, None), arguments, stack)


def _asked(arguments: argparse.Namespace, worker: Worker | None) -> Asked:
    """What is trained and how: by the command line, the run to go on with, and torchrun."""
    from naspipe.api.workers import execution_of
    from naspipe.cli.distill_sources import read_asked, read_resumed
    from naspipe.config.definition import Execution

    asked = read_resumed(arguments) if arguments.resume else read_asked(arguments)
    if worker is None:
        return asked
    how = execution_of(worker, Execution(**asked.execution), arguments.stages)
    given = {"stages": how.pipeline.stages, "transport": how.wire.transport}
    return replace(asked, execution={**asked.execution, **given})


def _training(asked: Asked, arguments: argparse.Namespace, shown: ExitStack) -> Training:
    """All streams, and their progress."""
    from naspipe.api.distill import Kept, blockwise_training
    from naspipe.api.progress import TrainingProgress
    from naspipe.cli.distill_sources import find
    from naspipe.cli.train import resume_of
    from naspipe.config.definition import Recipe

    teachers, students, data = find(asked.source, arguments.data_dir)
    stages = asked.execution.get("stages", 1)
    title = f"{asked.source.student} on {stages} stage{'s' if stages > 1 else ''}"
    passes = asked.recipe.steps.passes
    count = len(teachers) * asked.steps * passes
    unit = "passes" if passes > 1 else "steps"
    progress = TrainingProgress(title, count, arguments.quiet, arguments.log_every, unit)
    return blockwise_training(
        teachers,
        students.blocks,
        data,
        losses=(students.loss, students.last_loss),
        execution=asked.execution,
        kept=Kept(
            run_dir=asked.path,
            resume=resume_of(arguments),
            observer=shown.enter_context(progress),
            source=asdict(asked.source),
        ),
        steps=asked.steps,
        seed=asked.seed,
        sampler=asked.sampler,
        recipe={each.name: getattr(asked.recipe, each.name) for each in fields(Recipe)},
    )
