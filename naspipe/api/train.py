"""``naspipe.train``: train a search space that consists of ordinary torch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from naspipe.api.initial_weights import Weights, begin_with
from naspipe.api.keywords import Stated, tells_settings
from naspipe.api.observers import Told, watching
from naspipe.api.training import start
from naspipe.checks.data import check_is_data
from naspipe.checks.inputs import check_is_space
from naspipe.checks.loss import check_is_loss, given_fields, given_metrics
from naspipe.config.definition import Settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe, schedule_of, table_text
from naspipe.config.recipe_file import NO_RECIPE, RecipeFile, read_recipe
from naspipe.config.settings import GivenCode
from naspipe.config.space import Space
from naspipe.config.text import did_you_mean
from naspipe.config.user_code import users_code
from naspipe.config.wiring import Tap
from naspipe.distill.distillation import MakesTeacher
from naspipe.inputs.run import Run
from naspipe.inputs.strategies import Asked, check_draws, find_strategy_maker, name_of
from naspipe.jobs.losses import Loss, Metric
from naspipe.jobs.workload import Batches, Workload
from naspipe.plan.costs import AUTO
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import NotesToStderr
from naspipe.worker.layers.optimizers import PER_LAYER

Optimizer = str | Callable[..., torch.optim.Optimizer]
"""A name, or a class or function that takes parameters and returns an optimizer."""


Rate = float | Callable[[int], float] | Mapping[int, float]
"""The peak of a schedule, a function from a step to its rate, or rates by their first steps."""


def read_file(recipe: str | Path | Mapping[str, Any] | None) -> tuple[RecipeFile, Settings]:
    """Return the recipe file, if ``recipe`` names one, and the settings that it gives."""
    file = read_recipe(recipe) if isinstance(recipe, str | Path) else NO_RECIPE
    return file, file.applied_to(Settings())


def given_recipe(recipe: str | Path | Mapping[str, Any] | None, said: Stated, steps: int) -> Recipe:
    """Return the recipe; the settings in ``said`` take precedence over a file or a mapping.

    An optimizer other than the recipe's does not inherit its options. ``steps`` is the number of
    steps of the run; a rate function is called for each of them.
    """
    file, settings = read_file(recipe)
    base = settings.recipe
    before = {
        "optimizer": base.optimizer,
        "optimizer_options": base.optimizer_options,
        **_further(recipe),
    }
    fields = {**before, **said.recipe}
    fields["optimizer"] = _named(fields["optimizer"])
    if fields["optimizer"] != _named(before["optimizer"]):
        fields["optimizer_options"] = said.recipe.get("optimizer_options", {})
    options = fields["optimizer_options"]
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"optimizer_options: expected a mapping, as in {{'momentum': 0.9}}, found "
            f"{type(options).__name__}"
        )
    fields["optimizer_options"] = {**options, **said.options}
    _check_schedule(fields.get("schedule", ""), "schedule")
    says_rate = "lr" in fields or "lr" in file.values
    for given in (said.recipe, _further(recipe)):
        _check_one_schedule(given)
    if "lr" in fields:
        fields.update(_rated(fields["lr"], steps))
    made = replace(base, **fields)
    if "warmup_steps" in fields:
        made.check_warmup(steps)
    return made if says_rate else replace(made, lr=_own_rate(made))


def _rated(rate: Any, steps: int) -> dict[str, Any]:
    """Return the settings for a rate; rates by step become a schedule with the rate 1."""
    _check_schedule(rate, "lr")
    if isinstance(rate, Mapping):
        return {"lr": 1.0, "schedule": table_text(rate)}
    if callable(rate):
        with users_code("lr: expected a function from a step to its rate, found"):
            return {"lr": 1.0, "schedule": schedule_of(rate, steps)}
    return {"lr": rate}


def _check_schedule(given: Any, what: str) -> None:
    """Reject a torch scheduler, and a function instead of a name."""
    kind = given if isinstance(given, type) else type(given)
    todo = "write schedule='cosine' or another name, or lr=FUNCTION, which returns a step's rate"
    if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(
            f"{what}: expected no scheduler of torch's, which belongs to one optimizer of a whole "
            f"network, found {kind.__name__}; {todo}"
        )
    if what == "schedule" and callable(given):
        raise ConfigError(f"{what}: expected a name, as in 'cosine', found a function; {todo}")


def _check_one_schedule(given: Mapping[str, Any]) -> None:
    """Reject rates by step together with a schedule."""
    rate, schedule = given.get("lr"), given.get("schedule")
    if schedule is not None and (callable(rate) or isinstance(rate, Mapping)):
        kind = "a function" if callable(rate) else "a table"
        raise ConfigError(
            f"lr: expected a number beside schedule={schedule!r:.40}, which says how the rate "
            f"follows the step, found {kind}, which does, too; leave one of them out"
        )


def _own_rate(recipe: Recipe) -> float:
    """Return the default rate of a user's own optimizer; otherwise the recipe's rate."""
    if isinstance(recipe.optimizer, GivenCode):
        with suppress(Exception):  # a faulty optimizer is reported by its check
            made = recipe.optimizer.code(
                [torch.nn.Parameter(torch.zeros(1))], **recipe.optimizer_options
            )
            return float(made.param_groups[0]["lr"])
    return recipe.lr


def _named(optimizer: Any) -> Any:
    """Return the recipe's form of an optimizer: the name for those of torch."""
    if isinstance(optimizer, str):
        return optimizer
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer: expected its class, as every layer has one of its own, found the "
            f"{kind} of a whole network; give optimizer={kind}, lr=... and optimizer_options="
        )
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer: expected a name, a class or a function that makes one, found {kind} "
            f"{optimizer!r:.40}"
        )
    name = getattr(optimizer, "__name__", "")
    is_torchs = name in PER_LAYER and getattr(torch.optim, name, None) is optimizer
    return name if is_torchs else GivenCode(optimizer)


def _further(recipe: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the fields that a caller gives instead of a file."""
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


@tells_settings(
    "validate_every", "checkpoint_every", "schedule", "warmup_steps", "passes", "clip_layer_norm",
    "memory_budget", "device", "threads",
)  # fmt: skip
def train(
    space: Space,
    data: Batches,
    loss: Loss,
    *,
    steps: int | None = None,
    optimizer: Optimizer | None = None,
    lr: Rate | None = None,
    optimizer_options: Mapping[str, Any] | None = None,
    sampler: str | Any | None = None,
    seed: int = 0,
    stages: int | Literal["auto"] | None = None,
    policy: str = "csp",
    bulk: int = 0,
    run_dir: str | Path | None = None,
    resume: bool | str = False,
    recipe: str | Path | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    observer: LaunchObserver | None = None,
    held_out: Batches | None = None,
    teacher: MakesTeacher | None = None,
    loss_fields: Sequence[str] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    init_from: Weights | None = None,
    progress: bool | None = None,
    **more: Any,
) -> Run:
    """Train a supernet; the result has the bits of a sequential loop on any number of stages.

    Args:
        space: the blocks and their candidates.
        data: pure; ``data(seed, sequence_id)`` returns named tensors, batch dimension first.
        loss: called with the last block's outputs and the batch fields of ``loss_fields``. A module
            with its own parameters or buffers is trained as the last layer (docs/data.md).
        steps: optimizer steps, of one subnet each unless ``passes`` is set. Required.
        optimizer: a ``torch.optim`` class by name (SGD), or your own; gets ``optimizer_options``.
        lr: learning rate (0.05), scaled by ``schedule``; or a function from a step to its rate.
        sampler: ``uniform`` (default), ``fair``, ``spaced:W``, ``file:PATH``; or a strategy.
        seed: of the stream, the parameters and every random draw.
        stages: number of processes; 1 trains in this process. ``"auto"`` simulates several numbers
            of stages and groups, and chooses the fastest.
        policy: ``csp``, ``sequential``, ``asp``, or ``bsp`` with ``bulk`` subnets at a time.
        run_dir: a directory that does not exist yet; ``runs/NAME-TIME`` by default.
        resume: True resumes the run in ``run_dir``, which must have this definition;
            ``"if_exists"`` begins it there if it does not exist.
        recipe: the name of a naspipe recipe, such as ``"spos"``, or a file, or fields of
            :class:`naspipe.config.recipe.Recipe`. Other arguments take precedence over it.
        settings: by the keys of ``--set``, as in ``{"window": 8}``; likewise ``execution``.
        observer: receives losses and stage use during the run; it replaces progress on stderr.
        held_out: ``held_out(seed, number)`` for validation; ``data.validation`` by default.
        teacher: :class:`naspipe.Teacher` or :class:`naspipe.Momentum` to distill from.
        loss_fields: names of batch fields; ``("target",)`` if the loss has no ``fields`` itself.
        metrics: functions by name, called like the loss; each returns a number to record.
        init_from: initial weights: a run, state dict, file or modules (docs/optimizers.md).
        progress: False shows only notes on stderr; True shows progress in addition to an observer.
        more: all other settings as keywords: common ones are below, all in docs/settings.md.

    Raises:
        ConfigError: if the input cannot be used; in that case nothing has been written.
        StageFailedError: if a layer, the data or the loss raises an error in any stage.
        RunInterruptedError: after SIGINT or SIGTERM, with a checkpoint to resume from.
        StorageError: if a file cannot be written.
    """
    more |= {"stages": None if stages == AUTO else stages, "optimizer": optimizer, "lr": lr}
    more |= {"optimizer_options": optimizer_options}
    said = Stated.of(train, keywords=more, settings=settings, execution=execution)
    if steps is None:
        raise ConfigError("steps: expected how many to train, as in steps=1000, found none")
    what = workload(
        space,
        data,
        loss,
        steps=steps,
        sampler=sampler,
        seed=seed,
        policy=policy,
        bulk=bulk,
        recipe=recipe,
        held_out=held_out,
        loss_fields=loss_fields,
        metrics=metrics,
        init_from=init_from,
        **said.defining,
    )
    return train_together(
        [what],
        recipe_execution(recipe, **said.execution),
        run_dir,
        observer,
        resume=resume,
        teacher=teacher,
        progress=progress,
        chooses_stages=stages == AUTO,
    )[0]


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
    init_from: Weights | None = None,
    **settings: Any,
) -> Workload:
    """Define one run for :func:`train_together`; the arguments are those of :func:`train`.

    ``settings`` are ``optimizer``, ``lr``, ``optimizer_options`` and other settings of the recipe.

    Raises:
        ConfigError: if a value cannot be used.
    """
    check_is_space(space)
    check_is_data(data)
    check_is_loss(loss)
    if held_out is not None:
        check_is_data(held_out, "held_out")
    measured = given_metrics(metrics)
    said = Stated.of(workload, keywords=settings)
    for key in said.execution:
        raise ConfigError(
            f"{key}: expected it in the naspipe.Execution of the runs together, as it defines none"
        )
    file, base = read_file(recipe)
    chosen = given_recipe(recipe, said, steps)
    rules = {**base.rules, **said.rules}
    space = space.with_rules(rules) if rules else space
    begun: Mapping[str, Any] = {}
    if init_from is not None:
        space, begun = begin_with(space, init_from)
    sampler = (file.sampler or "uniform") if sampler is None else sampler
    check_draws(sampler)
    asked = Asked(seed=seed, delay=chosen.feedback_delay, subnets=steps)
    make_strategy = find_strategy_maker(sampler, space, asked)
    name = name_of(sampler)
    identity = {"seed": seed, "steps": steps, "sampler": name, "policy": policy, "bulk": bulk}
    names = {"loss_fields": given_fields(loss, loss_fields), "metrics": tuple(sorted(measured))}
    defined = Workload.of(space, data, loss, recipe=chosen, **identity, **names)
    return replace(
        defined, make_strategy=make_strategy, held_out=held_out, metrics=measured, begun=begun
    )


def train_together(
    workloads: Sequence[Workload],
    execution: Execution,
    run_dir: str | Path | None = None,
    observer: LaunchObserver | None = None,
    *,
    resume: bool | str = False,
    taps: Sequence[Tap] = (),
    exchanges: Sequence[str] = (),
    teacher: MakesTeacher | None = None,
    progress: bool | None = None,
    chooses_stages: bool = False,
) -> list[Run]:
    """Train several runs concurrently on one pipeline, so that each fills the others' bubbles.

    The result of each is bitwise equal to that of its solo run; their directories are
    ``run_dir/stream-0``, ``stream-1``, ... (NASPipe's hybrid traverse). With ``taps``, blocks of
    one run take outputs of another; weight updates wait for the named ``exchanges``. With a
    ``teacher`` of the only workload, the run is in ``run_dir`` and the records of the teacher are
    in ``run_dir/teacher``. ``progress`` is that of :func:`train`. ``chooses_stages`` corresponds to
    its ``stages="auto"``; ``execution`` must then leave the number of stages at 1, and its groups
    are kept.

    Raises:
        ConfigError: if the input cannot be used; in that case nothing has been written.
        StageFailedError: if a layer, the data or the loss raises an error in any stage.
    """
    if chooses_stages and execution.pipeline.stages > 1:
        raise ConfigError(
            f"stages={AUTO!r}: expected no number beside it, found "
            f"stages={execution.pipeline.stages}; leave one of them out"
        )
    training = start(
        workloads,
        execution,
        run_dir,
        watch=partial(watching, observer=observer, progress=progress),
        resume=resume,
        taps=taps,
        exchanges=exchanges,
        teacher=teacher,
        on_choice=Told(observer or NotesToStderr()).on_note if chooses_stages else None,
    )
    return [
        Run(workload.space, directory.path)
        for workload, directory in zip(training.workloads, training.directories, strict=True)
    ]


def recipe_execution(recipe: str | Path | Mapping[str, Any] | None, **settings: Any) -> Execution:
    """Return the execution of a recipe, with further settings applied."""
    return read_file(recipe)[1].execution.changed(**settings)
