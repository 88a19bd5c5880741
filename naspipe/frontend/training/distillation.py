"""``naspipe.distill_blockwise``: a teacher's blocks, each taught to one student, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.frontend.checks.data_checks import check_is_data
from naspipe.frontend.teaching.blockwise import APART, DECOUPLED, RELAYS, blockwise, folder
from naspipe.frontend.teaching.taught import Taught, carried_out
from naspipe.frontend.training.api import default_run_directory, recipe_execution, workload
from naspipe.frontend.training.beginnings import asked_resume
from naspipe.frontend.training.distilled import Blockwise, Keyed
from naspipe.frontend.training.training import Training
from naspipe.runtime.jobs.batches_apart import batches_kept
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.runtime.wire.reports import Observer
from naspipe.trace.results.run_directory import RunDirectory

WINDOW = 4
"""Steps that a block of the teacher may be ahead of those who take its output."""


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
    relay: str = DECOUPLED,
    window: int = WINDOW,
    run_dir: str | Path | None = None,
    resume: bool | str = False,
    observer: LaunchObserver | None = None,
    source: Mapping[str, Any] | None = None,
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
        stages: stage processes. ``execution={"partition": ...}`` says which of them runs which
            block: ``free`` (the default), ``pairs``, ``packed``, ``layers`` or ``hybrid``.
        seed: of the data; block i has ``seed + i`` for its parameters, its paths and its draws.
        sampler: of every block's paths; ``recipe``, ``execution``, ``resume``, ``observer`` and
            ``optimizer`` (with ``lr`` and ``optimizer_options``) as of :func:`naspipe.train`.
        relay: ``decoupled``; for comparison ``barrier`` or ``apart``, see
            :data:`naspipe.frontend.teaching.blockwise.RELAYS`. Changes no bit. Or as a setting of
            ``execution``, which then counts.
        window: steps that a block of the teacher may be ahead of those who take its output; or
            ``execution={"teacher_window": passes}``.
        run_dir: ``block-0``, ... and ``teacher-0``, ... lie below it.
        source: what a command line called it all, for the manifests.

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
    """
    training = blockwise_training(
        teachers, students, data, losses=(loss, last_loss), window=window,
        execution={"relay": relay, "stages": stages, **(execution or {})},
        kept=Kept(run_dir, resume, observer or Observer(), source or {}),
        steps=steps, seed=seed, sampler=sampler, recipe=recipe, **optimizer,
    )  # fmt: skip
    training.run()
    return Blockwise.of(training.path, teachers, students, data, loss=loss, last_loss=last_loss)


class Kept(NamedTuple):
    """Where a distillation leaves what it finds, and who is told of it."""

    run_dir: str | Path | None = None
    resume: bool | str = False
    observer: LaunchObserver = Observer()
    source: Mapping[str, Any] = {}


def blockwise_training(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    *,
    losses: tuple[Any, Any] = (None, None),
    window: int = WINDOW,
    execution: Mapping[str, Any],
    kept: Kept,
    **how: Any,
) -> Training:
    """What :func:`distill_blockwise` runs, before it does.

    Args:
        teachers: ``students``, ``data`` and ``window`` as there; so is ``how``.
        losses: as of :func:`blockwise_streams`.
        execution: settings, with ``stages`` and ``relay``.
        kept: where.

    Raises:
        ConfigError: for input that cannot be used.
    """
    check_is_data(data)
    relay = execution.get("relay", DECOUPLED)
    taught = blockwise_streams(
        teachers, students, data, losses=losses, relay=relay, window=window, **how
    )
    asked = {"partition": RELAYS[relay], **execution}
    carried = recipe_execution(how.get("recipe"), **asked)
    resuming = asked_resume(kept.resume, kept.run_dir)
    if kept.run_dir is not None:
        first = RunDirectory(Path(kept.run_dir) / folder(0))
        if resuming["resumes"] or (resuming["may_resume"] and first.manifest.exists()):
            _check_resumed(first.read_manifest(), kept.run_dir, relay)
    return _training(carried_out(taught, carried), carried, kept)


def _check_resumed(manifest: Mapping[str, Any], run_dir: str | Path, relay: str) -> None:
    """A resume must find streams of the same blocks."""
    began = (manifest.get("requested") or {}).get("relay", DECOUPLED)
    if relay != began and APART in (relay, began):
        raise ConfigError(
            f"relay={relay}: expected {began}, with which {run_dir} began, as each student has the "
            f"teacher's blocks for itself with one of them alone; leave it out"
        )


def blockwise_streams(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    *,
    seed: int = 0,
    losses: tuple[Any, Any] = (None, None),
    relay: str = DECOUPLED,
    window: int = WINDOW,
    **how: Any,
) -> Taught:
    """What :func:`distill_blockwise` trains, defined; ``how`` goes to :func:`naspipe.workload`.

    ``losses`` are that of every block but the last, and the last one's; None for the usual ones.

    Raises:
        ConfigError: for input that cannot be used.
    """

    def define(space: Space, batches: Batches, chosen: Any, number: int) -> Workload:
        return workload(space, batches, chosen, seed=seed + number, **how)

    with batches_kept():
        return blockwise(
            teachers, students, Keyed(data, seed), define, loss=losses[0], last_loss=losses[1],
            relay=relay, window=window,
        )  # fmt: skip


def _training(taught: Taught, how: Execution, kept: Kept) -> Training:
    recipe = taught.workloads[0].recipe
    if recipe.steps.distills:
        raise ConfigError(
            f"blockwise: expected passes other than {recipe.passes}, whose first pass is a "
            f"teacher already"
        )
    return Training(
        workloads=[replace(each, recompute=how.pipeline.recompute) for each in taught.workloads],
        execution=how,
        path=default_run_directory("blockwise") if kept.run_dir is None else Path(kept.run_dir),
        observer=kept.observer,
        sources=[kept.source] * len(taught.workloads),
        taps=taught.taps,
        places=taught.places,
        **asked_resume(kept.resume, kept.run_dir),
    )
