"""``naspipe.distill_blockwise``: a teacher's blocks, each taught to one student, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.core.config import Execution
from naspipe.core.errors import ConfigError
from naspipe.core.space import Space
from naspipe.frontend.given.blockwise import blockwise
from naspipe.frontend.given.distilled import Blockwise, Keyed
from naspipe.frontend.given.taught import Taught
from naspipe.frontend.training.api import default_run_directory, recipe_execution, workload
from naspipe.frontend.training.training import Training
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.runtime.wire.reports import SilentObserver

WINDOW = 4
"""Passes that the teacher may be ahead."""


def distill_blockwise(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    *,
    steps: int,
    loss: Any = None,
    last_loss: Any = None,
    stages: int = 1,
    seed: int = 0,
    sampler: str = "uniform",
    recipe: str | Path | Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    window: int = WINDOW,
    run_dir: str | Path | None = None,
    resume: bool = False,
    observer: LaunchObserver | None = None,
    **optimizer: Any,
) -> Blockwise:
    """Teach student block i what the teacher's block i makes of the teacher's output i - 1.

    Every block is a run of its own, with the bits of a plain loop in which the teacher goes through
    a batch and each student block takes its step; training block after block leaves the same.

    Args:
        teachers: the teacher's blocks, with their weights, in evaluation mode.
        students: of each of them a space, whose first block is called with the teacher's output
            before it, or modules. The last block's output must have the shape of the teacher's.
        data: pure; ``data(seed, step)`` returns named tensors.
        steps: of each student block.
        loss: of every student block but the last; with a method ``distill(output, taught)``. By
            default the mean square of the difference.
        last_loss: of the last one; by default cross entropy against the teacher's softmax.
        stages: stage processes. A student block is on one of them.
        seed: of data and paths; block i draws its parameters from ``seed + i``.
        sampler: of every block's paths; ``recipe``, ``execution``, ``resume``, ``observer`` and
            ``optimizer`` (with ``lr`` and ``optimizer_options``) as of :func:`naspipe.train`.
        window: passes that the teacher may be ahead.
        run_dir: ``block-0``, ``block-1``, ... and ``teacher`` lie below it.

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
    """
    if resume and run_dir is None:
        raise ConfigError("resume: expected the run_dir of the run to go on with")
    keyed = Keyed(data, seed)

    def define(space: Space, batches: Batches, chosen: Any, number: int) -> Workload:
        return workload(
            space, batches, chosen, steps=steps, sampler=sampler, seed=seed + number,
            recipe=recipe, **optimizer,
        )  # fmt: skip

    taught = blockwise(
        teachers, students, keyed, define, loss=loss, last_loss=last_loss, window=window
    )
    how = recipe_execution(recipe, stages=stages, **(execution or {}))
    path = Path(run_dir) if run_dir is not None else default_run_directory("blockwise")
    _train(taught, how, path, observer or SilentObserver(), resume)
    return Blockwise.of(path, teachers, students, data, loss=loss, last_loss=last_loss)


def _train(
    taught: Taught, how: Execution, path: Path, observer: LaunchObserver, resumes: bool
) -> None:
    training = Training(
        workloads=[replace(each, recompute=how.pipeline.recompute) for each in taught.workloads],
        execution=how,
        path=path,
        observer=observer,
        resumes=resumes,
        taps=taught.taps,
        places=taught.places,
    )
    training.run()
