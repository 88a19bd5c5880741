"""``naspipe.train``: a space in ordinary torch code, to a trained run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naspipe.core.config import Execution, Recipe, Settings
from naspipe.core.errors import ConfigError
from naspipe.core.recipe_file import NO_RECIPE, RecipeFile, read_recipe
from naspipe.core.space import Space
from naspipe.core.wiring import Tap
from naspipe.frontend.display.watching import watching
from naspipe.frontend.given.data_checks import check_is_data
from naspipe.frontend.given.keywords import Stated, did_you_mean
from naspipe.frontend.given.loss_checks import given_fields, given_metrics
from naspipe.frontend.given.run import Run
from naspipe.frontend.given.strategies import find_strategy_maker
from naspipe.frontend.teaching.joined import join
from naspipe.frontend.teaching.ports import MakesTeacher
from naspipe.frontend.training.training import Training
from naspipe.runtime.jobs.losses import Loss, Metric
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.wire.ports import LaunchObserver


def train(
    space: Space, data: Batches, loss: Loss, *, steps: int | None = None,
    optimizer: str | None = None, lr: float | None = None,
    optimizer_options: Mapping[str, Any] | None = None, sampler: str | Any | None = None,
    seed: int = 0, stages: int | None = None, policy: str = "csp", bulk: int = 0,
    run_dir: str | Path | None = None, resume: bool = False,
    recipe: str | Path | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None, execution: Mapping[str, Any] | None = None,
    observer: LaunchObserver | None = None, held_out: Batches | None = None,
    teacher: MakesTeacher | None = None, loss_fields: Sequence[str] | None = None,
    metrics: Mapping[str, Metric] | None = None, progress: bool | None = None, **more: Any,
) -> Run:  # fmt: skip
    """Train a supernet; the bits are those of a plain one-at-a-time loop on any number of stages.

    Args:
        space: the blocks and their candidates.
        data: pure; ``data(seed, sequence_id)`` returns named tensors, batch dimension first.
        loss: called with the last block's outputs and the batch fields of ``loss_fields``.
        steps: optimizer steps, of one subnet each unless ``passes`` say otherwise. Needed.
        optimizer: a ``torch.optim`` class (SGD), with ``lr`` (0.05) and ``optimizer_options``.
        sampler: ``uniform`` (the default), ``fair``, ``spaced:W`` or ``file:PATH``; or a strategy
            that learns, :func:`naspipe.frontend.given.strategies.find_strategy_maker`.
        seed: of the stream, the parameters and every random draw.
        stages: stage processes; 1 trains in this process.
        policy: ``csp``, or a baseline: ``sequential`` with the plain loop's bits, ``bsp``, ``asp``.
        bulk: of ``bsp``: subnets trained at the same versions; 0 for as many as stages.
        run_dir: a directory that does not exist yet; ``runs/NAME-TIME`` by default.
        resume: go on with the run of this definition in ``run_dir``; the execution may be another.
        recipe: a recipe of naspipe's by name, as in ``"spos"``, or a file, or fields of
            :class:`naspipe.core.config.Recipe`. All that is said beside it goes before it.
        settings: ``execution``, too; settings by the keys of ``--set``, as in ``{"window": 8}``.
        observer: told of losses and stage use as the run goes, in place of progress on stderr.
        held_out: ``held_out(seed, number)`` to validate by; ``data.validation`` by default.
        teacher: :class:`naspipe.Teacher` or :class:`naspipe.Momentum`, whose output is learned.
        loss_fields: names of batch fields; ``("target",)``, if the loss has no ``fields`` itself.
        metrics: functions by name, called as the loss is; each gives one number, which is recorded.
        progress: False shows none, but notes on stderr; True shows it beside an observer, too.
        more: settings as keywords, as in ``memory_budget="2x"``, ``passes=2`` (micro-batches).

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
        StageFailedError: when a layer, the data or the loss raises in any stage.
        RunInterruptedError: after SIGINT or SIGTERM, behind a checkpoint to resume from.
        StorageError: when a file cannot be written.
    """
    keywords = {
        "stages": stages, "optimizer": optimizer, "lr": lr, "optimizer_options": optimizer_options,
        **more,
    }  # fmt: skip
    said = Stated.of(train, keywords=keywords, settings=settings, execution=execution)
    if steps is None:
        raise ConfigError("steps: expected how many to train, as in steps=1000, found none")
    how = recipe_execution(recipe, **said.execution)
    what = workload(
        space, data, loss, steps=steps, sampler=sampler, seed=seed, policy=policy, bulk=bulk,
        recipe=recipe, held_out=held_out, loss_fields=loss_fields, metrics=metrics, **said.defining,
    )  # fmt: skip
    return train_together(
        [what], how, run_dir, observer, resume=resume, teacher=teacher, progress=progress
    )[0]  # fmt: skip


def workload(
    space: Space,
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    sampler: str | Any | None = None,
    seed: int = 0,
    policy: str = "csp",
    bulk: int = 0,
    recipe: str | Path | Mapping[str, Any] | None = None,
    held_out: Batches | None = None,
    loss_fields: Sequence[str] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> Workload:
    """One run's definition, for :func:`train_together`; the arguments are those of :func:`train`.

    ``settings`` are ``optimizer``, ``lr``, ``optimizer_options`` and others of the recipe.

    Raises:
        ConfigError: for a value that cannot be used.
    """
    check_is_data(data)
    if held_out is not None:
        check_is_data(held_out, "held_out")
    measured = given_metrics(metrics)
    said = Stated.of(workload, keywords=settings)
    for key in said.execution:
        raise ConfigError(
            f"{key}: expected it in the naspipe.Execution of the runs together, as it defines none"
        )
    file, base = _file(recipe)
    rules = {**base.rules, **said.rules}
    space = space.with_rules(rules) if rules else space
    sampler = sampler or file.sampler or "uniform"
    make_strategy = find_strategy_maker(sampler, space, seed)
    name = sampler if isinstance(sampler, str) else type(sampler).__qualname__
    identity = {"seed": seed, "steps": steps, "sampler": name, "policy": policy, "bulk": bulk}
    beside = {"loss_fields": given_fields(loss, loss_fields), "metrics": tuple(sorted(measured))}
    chosen = _chosen(base.recipe, _further(recipe), said)
    defined = Workload.of(space, data, loss, recipe=chosen, **identity, **beside)
    return replace(defined, make_strategy=make_strategy, held_out=held_out, metrics=measured)


def _chosen(base: Recipe, further: Mapping[str, Any], said: Stated) -> Recipe:
    """A recipe with further fields, and then with settings; another optimizer has its own options.

    Raises:
        ConfigError: for a value that cannot be used.
    """
    before = {
        "optimizer": base.optimizer, "optimizer_options": base.optimizer_options, **further
    }  # fmt: skip
    fields = {**before, **said.recipe}
    if fields["optimizer"] != before["optimizer"]:
        fields["optimizer_options"] = said.recipe.get("optimizer_options", {})
    options = fields["optimizer_options"]
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"optimizer_options: expected a mapping, as in {{'momentum': 0.9}}, found "
            f"{type(options).__name__}"
        )
    return replace(base, **{**fields, "optimizer_options": {**options, **said.options}})


def _file(recipe: str | Path | Mapping[str, Any] | None) -> tuple[RecipeFile, Settings]:
    """A recipe file, where one is meant, and the settings that it gives."""
    file = read_recipe(recipe) if isinstance(recipe, str | Path) else NO_RECIPE
    return file, file.applied_to(Settings())


def _further(recipe: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The fields that a caller gives in place of a file."""
    further = {} if isinstance(recipe, str | Path) else recipe or {}
    known = Recipe.__dataclass_fields__
    if not isinstance(further, Mapping) or (wrong := sorted(map(str, set(further) - set(known)))):
        found = (
            f"{type(further).__name__}"
            if not isinstance(further, Mapping)
            else f"{wrong}{did_you_mean(wrong[0], known)}"
        )
        raise ConfigError(
            f"recipe: expected a file or a mapping of {', '.join(known)}, found {found:.120}"
        )
    return further


def train_together(
    workloads: Sequence[Workload],
    execution: Execution,
    run_dir: str | Path | None = None,
    observer: LaunchObserver | None = None,
    *,
    resume: bool = False,
    taps: Sequence[Tap] = (),
    exchanges: Sequence[str] = (),
    teacher: MakesTeacher | None = None,
    progress: bool | None = None,
) -> list[Run]:
    """Train several runs side by side on one pipeline: each fills the others' bubbles.

    The result of each is bit for bit that of its solo run; their directories are
    ``run_dir/stream-0``, ``stream-1``, ... (NASPipe's hybrid traverse). With ``taps``, blocks of
    one take outputs of another; ``exchanges`` are what WRITEs wait for, by name. With a ``teacher``
    of the only workload, its run is in ``run_dir``, and what is recorded of the teacher in
    ``run_dir/teacher``. ``progress`` is that of :func:`train`.

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
        StageFailedError: when a layer, the data or the loss raises in any stage.
    """
    if resume and run_dir is None:
        raise ConfigError("resume: expected the run_dir of the run to go on with")
    joined = join(workloads, execution, taps, teacher)
    workloads = joined.workloads
    path = Path(run_dir) if run_dir is not None else None
    with watching(workloads, execution.pipeline.stages, observer, progress) as told:
        training = Training(
            workloads=[replace(each, recompute=execution.pipeline.recompute) for each in workloads],
            execution=execution,
            path=path or default_run_directory(workloads[0].space.name),
            observer=told,
            resumes=resume,
            taps=joined.taps,
            exchanges=exchanges,
            places=joined.places,
        )
        training.run()
    return [
        Run(workload.space, directory.path)
        for workload, directory in zip(workloads, training.directories, strict=True)
    ]


def recipe_execution(recipe: str | Path | Mapping[str, Any] | None, **settings: Any) -> Execution:
    """How a run is carried out, by its recipe and further settings."""
    return _file(recipe)[1].execution.changed(**settings)


def default_run_directory(name: str) -> Path:
    """``runs/NAME-TIME`` below the working directory."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
