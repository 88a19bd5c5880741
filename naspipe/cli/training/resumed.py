"""``train --resume``: what a run directory says of the run that is to go on."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.cli.flags import flags, given
from naspipe.config.definition import Definition, Execution, Recipe, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.settings import declared

if TYPE_CHECKING:
    from naspipe.runtime.jobs.workload import Workload

DEFINING = (*(each.key for each in flags(Definition)), "streams", "data", "recipe")
"""Options that define a run, so that a resume takes them from it."""


def read_resumed(
    path: Path, arguments: argparse.Namespace
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """The execution, the workloads and their sources; options that are given change the execution.

    Raises:
        ConfigError: when it is no run directory, was not started from the command line, or an
            option is given that the run defines.
    """
    for name in ("space", *DEFINING, "run_dir"):
        if getattr(arguments, name) is not None:
            option = "SPACE" if name == "space" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}: expected nothing beside --resume, which takes it from {path}; leave "
                f"it out"
            )
    manifests = _manifests(path)
    execution = resumed_execution(manifests[0], path, arguments)
    workloads = [_workload(each, execution, path, arguments) for each in manifests]
    return execution, workloads, [each["source"] for each in manifests]


def resumed_execution(
    manifest: dict[str, Any], path: Path, arguments: argparse.Namespace
) -> Execution:
    """How a run goes on: as it was carried out, but for the options that are given.

    Raises:
        ConfigError: for a manifest of another version, or a setting that defines the run.
    """
    execution = _execution(manifest.get("requested"), path)
    recipe_free = Settings(execution=execution)
    settings = apply_settings(recipe_free, arguments.set)
    if replace(settings, execution=execution) != recipe_free:
        raise ConfigError("--set: expected settings of execution only, beside --resume")
    return settings.execution.changed(**given(Execution, arguments))


def _manifests(path: Path) -> list[dict[str, Any]]:
    from naspipe.trace.results.run_directory import RunDirectory

    if not (path / "stream-0").is_dir():
        return [RunDirectory(path).read_manifest()]
    first = RunDirectory(path / "stream-0").read_manifest()
    count = int(first.get("execution", {}).get("streams", 1))
    rest = [RunDirectory(path / f"stream-{number}").read_manifest() for number in range(1, count)]
    return [first, *rest]


def _execution(requested: Any, path: Path) -> Execution:
    """By their keys; settings that are newer than the manifest have their defaults."""
    if not isinstance(requested, dict) or not requested.keys() <= declared(Execution).keys():
        raise ConfigError(f"{path}: expected a run of this version, found other settings in it")
    try:
        return Execution(**requested)
    except ConfigError as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error}") from error


def recorded_recipe(definition: dict[str, Any], path: Path) -> Recipe:
    """The recipe of a run.

    Raises:
        ConfigError: for a manifest that is damaged.
    """
    try:
        return Recipe(**definition["recipe"])
    except ConfigError as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error}") from error


def _workload(
    manifest: dict[str, Any], execution: Execution, path: Path, arguments: argparse.Namespace
) -> Workload:
    from naspipe.config.blocks import LOSS
    from naspipe.config.rules import parse_rule
    from naspipe.frontend.given.held_out import held_out_for
    from naspipe.frontend.given.joined_end import END
    from naspipe.frontend.given.strategies import Asked, find_strategy_maker
    from naspipe.frontend.given.workloads import find_workload

    definition, source = manifest.get("definition"), manifest.get("source")
    if not source or not isinstance(definition, dict):
        raise ConfigError(
            f"{path} was not started by `naspipe train`: go on with naspipe.train(..., "
            f"run_dir={str(path)!r}, resume=True)"
        )
    if source.get("command") == "distill":
        raise ConfigError(
            f"{path} was started by `naspipe distill`: go on with naspipe distill --resume and "
            f"the folder that it is in"
        )
    try:
        scale, data = source["scale"], source["data"]
        sizes = source.get("sizes")
        named = find_workload(source["space"], scale, data, arguments.data_dir, sizes)
        said = definition["rules"].items()
        known = named.space.shared_rules
        rules = {n: parse_rule(text) for n, text in said if n in known or n not in (END, LOSS)}
        recipe = recorded_recipe(definition, path)
        identity = {
            key: definition[key] for key in ("seed", "steps", "sampler", "policy", "bulk", "scale")
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error!r:.120}") from error
    defined = named.redefined(rules, recipe=recipe, **identity)
    own = arguments.validation
    asked = Asked(seed=identity["seed"], delay=recipe.feedback_delay, subnets=identity["steps"])
    return replace(
        defined,
        recompute=execution.pipeline.recompute,
        make_strategy=find_strategy_maker(identity["sampler"], defined.space, asked),
        held_out=held_out_for(
            execution, {**source, "validation": own or source.get("validation")}, arguments.data_dir
        ),
    )
