"""Train a supernet on one or several stages and write a run directory.

The bits of the result depend on the definition (space, data, recipe, seed, steps, sampler)
and never on the stages, the partition, recompute or the timing of messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from naspipe.cli.display.json_results import as_json, trained
from naspipe.cli.display.result_lines import tell
from naspipe.cli.flags import given
from naspipe.cli.teaching.teacher import join_teacher, with_momentum
from naspipe.cli.training.train_arguments import DEFAULTS, resume_of
from naspipe.cli.training.train_arguments import add_arguments as add_arguments
from naspipe.planning.group_shapes import AUTO

if TYPE_CHECKING:
    from naspipe.cli.streams import StreamOptions
    from naspipe.cli.teaching.teacher import Joined
    from naspipe.config.definition import Execution, Settings
    from naspipe.config.recipe_file import RecipeFile
    from naspipe.frontend.training.training import Training
    from naspipe.runtime.jobs.workload import Workload


def run(arguments: argparse.Namespace) -> int:
    """Train; prints the run directories on stdout. Under torchrun, this is one of its workers."""
    from naspipe.config.errors import ConfigError
    from naspipe.frontend.simulation.chosen_stages import choose_stages
    from naspipe.frontend.training.workers import execution_of, refuse, train_as_worker
    from naspipe.runtime.jobs.workload import wiring_of
    from naspipe.runtime.processes.rendezvous import Worker
    from naspipe.runtime.wire.reports import NotesToStderr

    worker = Worker.find()
    if chooses_stages := arguments.stages == AUTO:
        arguments.stages = None
    try:
        if chooses_stages and any(each.startswith("stages=") for each in arguments.set):
            raise ConfigError(
                f"--stages {AUTO}: expected no --set stages=N beside it; leave one of them out"
            )
        execution, workloads, sources = _defined(arguments)
        joined = join_teacher(arguments, execution, workloads, sources)
        if worker is not None:
            execution = execution_of(worker, execution, arguments.stages)
        elif chooses_stages:
            wiring, say = wiring_of(joined.workloads, joined.taps), NotesToStderr().on_note
            execution = choose_stages(joined.workloads, execution, wiring, say).execution
    except ConfigError as error:
        if worker is not None:
            refuse(worker, str(error))
        raise
    with _training(arguments, execution, joined) as training:
        if worker is not None:
            has_place = bool(arguments.resume or arguments.run_dir)
            train_as_worker(training, worker, has_place=has_place)
        else:
            training.run()
    if worker is None or worker.rank == 0:
        if arguments.json:
            tell(as_json(trained(training.directories)))
        for directory in () if arguments.json else training.directories:
            tell(str(directory.path))
    return 0


def training_of(arguments: argparse.Namespace, stack: ExitStack) -> Training:
    """The training that a command line defines; ``stack`` holds what shows its progress."""
    execution, workloads, sources = _defined(arguments)
    joined = join_teacher(arguments, execution, workloads, sources)
    return stack.enter_context(_training(arguments, execution, joined))


@contextmanager
def _training(
    arguments: argparse.Namespace,
    execution: Execution,
    joined: Joined,
) -> Iterator[Training]:
    """The training, whose progress is shown while it goes on."""
    from naspipe.frontend.display.watching import training_progress
    from naspipe.frontend.training.api import default_run_directory
    from naspipe.frontend.training.beginnings import asked_resume
    from naspipe.frontend.training.training import Training

    workloads = [workload for workload in joined.workloads if workload.is_trained]
    names = list(dict.fromkeys(workload.space.name for workload in workloads))
    path = arguments.resume or arguments.run_dir
    path = path or default_run_directory("-".join(names).replace(":", "-"))
    stages = execution.pipeline.stages
    with training_progress(workloads, stages, arguments.quiet, arguments.log_every) as progress:
        yield Training(
            workloads=joined.workloads,
            execution=execution,
            path=path,
            observer=progress,
            sources=joined.sources,
            taps=joined.taps,
            places=joined.places,
            **asked_resume(resume_of(arguments), path),
        )


def _defined(
    arguments: argparse.Namespace,
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """What is trained, and how; from the run where one is resumed."""
    from naspipe.cli.streams import parse_streams
    from naspipe.cli.training.resumed import read_resumed
    from naspipe.config.errors import ConfigError
    from naspipe.config.recipe_file import NO_RECIPE, read_recipe

    if arguments.resume:
        execution, workloads, sources = read_resumed(arguments.resume, arguments)
        return (
            execution,
            [replace(w, recompute=execution.pipeline.recompute) for w in workloads],
            sources,
        )
    recipe = NO_RECIPE if arguments.recipe is None else read_recipe(arguments.recipe)
    arguments.sampler = arguments.sampler or recipe.sampler
    for name, default in DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    if arguments.space is None:
        raise ConfigError("expected a SPACE, or --resume RUN; see naspipe train --help")
    streams = parse_streams(arguments.streams, arguments)
    return _workloads(streams, recipe, arguments)


def _settings(settings: Settings, recipe: RecipeFile, arguments: argparse.Namespace) -> Settings:
    """With the recipe's values, the options that are given, and ``--set``, each before the last."""
    from naspipe.config.definition import Execution, apply_settings

    found = recipe.applied_to(settings)
    execution = found.execution.changed(**given(Execution, arguments))
    found = replace(found, execution=execution)
    return with_momentum(apply_settings(found, arguments.set), arguments.momentum)


def _workloads(
    streams: Sequence[StreamOptions],
    recipe: RecipeFile,
    arguments: argparse.Namespace,
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """The execution, what each stream trains, and its source.

    Raises:
        ConfigError: for a name that cannot be found or a value that does not fit.
    """
    from naspipe.config.definition import Settings
    from naspipe.frontend.given.held_out import held_out_for
    from naspipe.frontend.given.strategies import Asked, check_draws, find_strategy_maker
    from naspipe.frontend.given.workloads import find_workload

    found: dict[tuple[str, str, str | None], Workload] = {}
    workloads: list[Workload] = []
    sources: list[dict[str, Any]] = []
    settings = _settings(Settings(), recipe, arguments)
    sizes = dict(settings.data)
    for stream in streams:
        key = (stream.space, stream.scale, stream.data)
        if key not in found:
            named = find_workload(*key, arguments.data_dir, sizes)
            settings = _settings(Settings(recipe=named.recipe), recipe, arguments)
            found[key] = named.redefined(settings.rules, recipe=settings.recipe)
        named = found[key]
        source = {
            "space": stream.space, "scale": stream.scale, "data": stream.data, "sizes": sizes,
            "recipe": arguments.recipe, "validation": arguments.validation,
            **({"momentum": dict(settings.momentum)} if settings.momentum else {}),
        }  # fmt: skip
        defined = named.redefined(
            seed=stream.seed,
            steps=stream.steps,
            sampler=stream.sampler,
            policy=arguments.policy,
            bulk=arguments.bulk,
        )
        check_draws(stream.sampler)
        if any(each.startswith("warmup_steps=") for each in arguments.set):
            defined.recipe.check_warmup(stream.steps)
        delay = defined.recipe.feedback_delay
        asked = Asked(seed=stream.seed, delay=delay, subnets=stream.steps)
        workloads.append(
            replace(
                defined,
                recompute=settings.execution.pipeline.recompute,
                make_strategy=find_strategy_maker(stream.sampler, named.space, asked),
                held_out=held_out_for(settings.execution, source, arguments.data_dir),
            )
        )
        sources.append(source)
    return settings.execution, workloads, sources
