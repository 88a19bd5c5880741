"""Distil each block of a trained network into a student block of its own, all blocks in parallel.

Student block i receives the output of the teacher's block i - 1 for a batch, and learns to
reproduce the output of the teacher's block i. Each student block is a separate run in a
subdirectory of the run directory: block-0, block-1, ... The results are bit-identical to those of a
plain loop, on any number of stages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from naspipe.cli.distill_sources import add_arguments as add_arguments
from naspipe.cli.output import as_json, tell
from naspipe.cli.output import trained as described

if TYPE_CHECKING:
    from naspipe.api.training import Training
    from naspipe.launch.hosts import Worker


def run(arguments: argparse.Namespace) -> int:
    """Distill; print the run directory of each block. Under torchrun, act as one of its workers.

    Each worker defines all streams; only the first one shows progress and results.
    """
    from naspipe.launch.hosts import Worker

    worker = Worker.find()
    training = carry_out(arguments, worker)
    if worker is not None and worker.rank:
        return 0
    trained = [
        directory
        for workload, directory in zip(training.workloads, training.directories, strict=True)
        if workload.is_trained
    ]
    places = [str(directory.path) for directory in trained]
    tell(as_json(described(trained)) if arguments.json else "\n".join(places))
    if not arguments.quiet:
        page = training.path / "report.html"
        print(f"next: naspipe report {' '.join(places)} -o {page}", file=sys.stderr)
    return 0


def carry_out(
    arguments: argparse.Namespace,
    worker: Worker | None = None,
    act: Callable[[Training], None] | None = None,
) -> Training:
    """Define the distillation of a command line, and run it or call ``act`` with it."""
    from naspipe.api.distill import start_blockwise
    from naspipe.api.observers import training_progress
    from naspipe.api.workers import execution_of, refusal_told
    from naspipe.cli.distill_sources import find, read_asked, read_resumed
    from naspipe.cli.train import resume_of
    from naspipe.config.execution import Execution

    with refusal_told(worker):
        asked = read_resumed(arguments) if arguments.resume else read_asked(arguments)
        execution = asked.execution
        if worker is not None:
            how = execution_of(worker, Execution(**execution), arguments.stages)
            of_worker = {"stages": how.pipeline.stages, "transport": how.wire.transport}
            execution = {**execution, **of_worker}
        taught = asked.streams(find(asked.source, arguments.data_dir))
    return start_blockwise(
        taught,
        asked.recipe_fields,
        execution,
        arguments.resume or arguments.run_dir,
        resume=resume_of(arguments),
        source=asdict(asked.source),
        name=asked.source.student.replace(":", "-"),
        watch=partial(
            training_progress,
            is_quiet=arguments.quiet,
            every_seconds=arguments.log_every,
            name=asked.source.student,
        ),
        worker=worker,
        carry_out=act,
    )
