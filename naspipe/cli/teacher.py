"""``--teacher`` and ``--momentum``: the teacher of the stream that is trained."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.cli.options import Options, add_options
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError

if TYPE_CHECKING:
    from naspipe.config.definition import Settings
    from naspipe.distill.distillation import MakesTeacher
    from naspipe.distill.momentum import Momentum
    from naspipe.distill.teachers import Teacher
    from naspipe.jobs.workload import Workload


def add_arguments(parser: Options) -> None:
    add_options(
        parser,
        """
        --teacher RUN|DIR  finished run, or exported subnet, from whose output the student learns
        --teacher-subnet CHOICES  subnet of the teacher's supernet: best, first, last, a step
            number, or choices such as 0,1,3 (default: last)
        --teacher-top K  learn only from the teacher's K highest scores, normalised to sum to one;
            this defines a different teacher
        --momentum TAU[:END]  train with a momentum teacher that keeps the fraction TAU of its
            weights in each step; END is the fraction at the last step
        """,
    )


def with_momentum(settings: Settings, text: str | None) -> Settings:
    """Return the settings with the value of ``--momentum``."""
    if text is None:
        return settings
    tau, colon, end = text.partition(":")
    said = [f"momentum.tau={tau}", *([f"momentum.end={end}"] if colon else [])]
    try:
        return apply_settings(settings, said)
    except ConfigError as error:
        said_of = str(error).removeprefix("--set ")
        raise ConfigError(f"--momentum {text:.40}: {said_of}") from None


def with_teacher(
    arguments: argparse.Namespace, workloads: list[Workload], sources: list[dict[str, Any]]
) -> tuple[list[Workload], list[dict[str, Any]], MakesTeacher | None]:
    """Return the workloads, the sources, and the teacher of the command line or the resumed run.

    With a teacher there are two sources, because its stream has one as well.
    """
    from naspipe.losses.top_target import TopTarget

    if arguments.resume and (arguments.teacher or arguments.momentum):
        option = "--teacher" if arguments.teacher else "--momentum"
        raise ConfigError(
            f"{option}: expected nothing beside --resume, which takes it from {arguments.resume}; "
            f"leave it out"
        )
    asked = (sources[0].get("teacher") if arguments.resume else None) or _asked(arguments)
    teacher = _made(asked, sources[0].get("momentum") or {}, arguments.data_dir)
    if asked and "top" in asked:
        workloads = [replace(each, loss=TopTarget(each.loss)) for each in workloads]
    if teacher is not None:
        sources = [{**sources[0], **({"teacher": asked} if asked else {})}] * 2
    return workloads, sources, teacher


def teacher_of(arguments: argparse.Namespace, momentum: Mapping[str, Any]) -> MakesTeacher | None:
    """Return the teacher of the command line, or the momentum teacher of the settings."""
    asked = _asked(arguments) or {}
    asked.pop("top", None)  # does not affect the costs
    return _made(asked or None, momentum, arguments.data_dir)


def _asked(arguments: argparse.Namespace) -> dict[str, str] | None:
    if arguments.teacher is not None:
        top = {} if arguments.teacher_top is None else {"top": str(arguments.teacher_top)}
        return {"run": str(arguments.teacher), "subnet": arguments.teacher_subnet or "last", **top}
    for name in ("subnet", "top"):
        if getattr(arguments, f"teacher_{name}") is not None:
            raise ConfigError(f"--teacher-{name}: expected --teacher RUN with it, found none")
    return None


def _made(
    asked: Mapping[str, str] | None, momentum: Mapping[str, Any], data_dir: Path | None
) -> MakesTeacher | None:
    if asked is not None and momentum:
        raise ConfigError("--teacher: expected no momentum teacher beside it, found one; choose")
    if asked is not None:
        top = int(asked.get("top", 0))
        return find_teacher(Path(asked["run"]), asked["subnet"], data_dir, top)
    return momentum_of(momentum) if momentum else None


def momentum_of(said: Mapping[str, Any]) -> Momentum:
    """Return the teacher for momentum settings."""
    from naspipe.distill.momentum import Momentum

    if "tau" not in said:
        raise ConfigError(
            f"momentum.{next(iter(said))}: expected --momentum TAU with it, as in --momentum 0.99"
        )
    without = said.get("without")
    blocks = None if without is None else tuple(filter(None, without.split(",")))
    return Momentum(**{**said, "without": blocks})


def find_teacher(path: Path, subnet: str, data_dir: Path | None, top: int = 0) -> Teacher:
    """Return a teacher: a subnet of a run from the command line, or an exported subnet."""
    from naspipe.cli.sources import run_source
    from naspipe.distill.teachers import Teacher
    from naspipe.export.assembly import find_choices
    from naspipe.inputs.named import as_trained, find_workload
    from naspipe.inputs.run import Run, check_space
    from naspipe.store.run_directory import RunDirectory

    if (path / "model.json").is_file():
        from naspipe.export.pytorch_form import load_pytorch

        return Teacher(load_pytorch(path), top=top)
    nothing = argparse.Namespace(space=None, data=None, run=path)
    manifest = RunDirectory(path).read_manifest()
    source = run_source(nothing, manifest)
    named = find_workload(source.space, source.scale, source.data, data_dir, source.sizes)
    run = Run(as_trained(named, manifest).space, path)
    check_space(run)
    return Teacher(run, find_choices(run, subnet), top=top)
