"""What a distillation is: from the command line, or from the run to go on with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naspipe.cli.distilling.distill_arguments import DEFINING
from naspipe.cli.flags import flags, given
from naspipe.config.definition import Definition, Execution, Recipe, Settings, apply_settings
from naspipe.config.errors import ConfigError

_SETUP = (*DEFINING, "teacher", "student", "data", "recipe", "run_dir", "network", "cuts",
          "teacher_subnet")  # fmt: skip
"""Options that a resume takes from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the command line called a distillation; in the manifest of each block."""

    teacher: str
    subnet: str
    network: str | None
    student: str
    scale: str | None
    data: str | None
    sizes: dict[str, int]
    cuts: list[int]
    rules: dict[str, str]
    command: str = "distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is trained, and how."""

    source: Source
    steps: int
    seed: int
    sampler: str
    recipe: Recipe
    execution: Mapping[str, Any]
    path: Path


def read_asked(arguments: argparse.Namespace) -> Asked:
    """From the command line.

    Raises:
        ConfigError: for a value that does not fit, or a setting that means nothing here.
    """
    import search_spaces
    from naspipe.config.recipe_file import NO_RECIPE, read_recipe
    from naspipe.frontend.training.api import default_run_directory

    if arguments.student is None:
        raise ConfigError("expected TEACHER and STUDENT, or --resume RUN; see naspipe distill -h")
    is_own = ":" in arguments.student
    usual = None if is_own else search_spaces.student_kind(arguments.student).recipe
    name = arguments.recipe or usual
    file = read_recipe(name) if name else NO_RECIPE
    settings = apply_settings(file.applied_to(Settings()), arguments.set)
    execution = settings.execution.changed(**given(Execution, arguments))
    _check_settings(settings, execution)
    source = Source(
        teacher=str(arguments.teacher), subnet=arguments.teacher_subnet or "last",
        network=arguments.network, student=arguments.student, scale=arguments.scale,
        data=arguments.data, sizes=dict(settings.data), cuts=arguments.cuts or [],
        rules={name: str(rule) for name, rule in settings.rules.items()},
    )  # fmt: skip
    usual_of = {each.key: each.usual for each in flags(Definition, *DEFINING)}
    said = {key: getattr(arguments, key) for key in DEFINING}
    said = {key: usual_of[key] if value is None else value for key, value in said.items()}
    keys = {word.partition("=")[0] for word in arguments.set} | given(Execution, arguments).keys()
    values = execution.as_dict()
    return Asked(
        source=source,
        steps=said["steps"],
        seed=said["seed"],
        sampler=arguments.sampler or file.sampler or said["sampler"],
        recipe=settings.recipe,
        execution={key: values[key] for key in values if key in keys},
        path=arguments.run_dir or default_run_directory(arguments.student.replace(":", "-")),
    )


def _check_settings(settings: Settings, execution: Execution) -> None:
    if settings.momentum:
        raise ConfigError("momentum: expected none, as TEACHER stays as it is, found some; leave "
                          "it out")  # fmt: skip
    if execution.validation.every_steps:
        raise ConfigError(
            "--validate-every: expected none, as no student block alone predicts a target, found "
            f"{execution.validation.every_steps}; leave it out"
        )


def read_resumed(arguments: argparse.Namespace) -> Asked:
    """From a run; options that are given change the execution.

    Raises:
        ConfigError: when it is no distillation from the command line, or for an option that it
            defines.
    """
    from naspipe.cli.training.resumed import recorded_recipe, resumed_execution
    from naspipe.trace.results.run_directory import RunDirectory

    path = arguments.resume
    for name in _SETUP:
        if getattr(arguments, name) is not None:
            is_word = name in ("teacher", "student")
            option = name.upper() if is_word else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected nothing beside --resume, which takes it from "
                              f"{path}; leave it out")  # fmt: skip
    manifest = RunDirectory(path / "block-0").read_manifest()
    execution = resumed_execution(manifest, path, arguments)
    _check_settings(Settings(), execution)
    recorded, definition = manifest.get("source") or {}, manifest.get("definition")
    if recorded.get("command") != "distill" or not isinstance(definition, dict):
        raise ConfigError(
            f"{path} was not started by `naspipe distill`: go on with "
            f"naspipe.distill_blockwise(..., run_dir={str(path)!r}, resume=True)"
        )
    try:
        source = Source(**recorded)
        said = {key: definition[key] for key in ("steps", "seed", "sampler")}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error!r:.120}") from error
    recipe = recorded_recipe(definition, path)
    return Asked(source=source, recipe=recipe, execution=execution.as_dict(), path=path, **said)
