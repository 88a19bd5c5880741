"""``--teacher``: a subnet of a finished run teaches the one that is trained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from naspipe.cli.ports import Options
    from naspipe.core.wiring import Tap
    from naspipe.frontend.given.teachers import Teacher
    from naspipe.runtime.jobs.workload import Workload


class Joined(NamedTuple):
    """Streams and what is between them."""

    workloads: Sequence[Workload]
    sources: Sequence[dict[str, Any]]
    taps: Sequence[Tap] = ()
    places: Sequence[str] = ()


def add_arguments(parser: Options) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--teacher", type=Path, metavar="RUN", help="a finished run, whose output is learned"
    )
    parser.add_argument(
        "--teacher-subnet",
        metavar="CHOICES",
        help="of its supernet: best, first, last, a step, or choices as in 0,1,3 (default: last)",
    )


def join_teacher(
    arguments: argparse.Namespace, workloads: Sequence[Workload], sources: Sequence[dict[str, Any]]
) -> Joined:
    """The streams with the teacher that the command line, or the run to resume, asks for.

    Raises:
        ConfigError: for a teacher that cannot be used.
    """
    from naspipe.core.errors import ConfigError

    asked = sources[0].get("teacher") if arguments.resume else None
    if arguments.teacher is not None:
        if arguments.resume:
            raise ConfigError(f"--teacher: expected nothing beside --resume, which takes it from "
                              f"{arguments.resume}; leave it out")  # fmt: skip
        asked = {"run": str(arguments.teacher), "subnet": arguments.teacher_subnet or "last"}
    elif arguments.teacher_subnet is not None:
        raise ConfigError("--teacher-subnet: expected --teacher RUN with it, found none")
    if asked is None:
        return Joined(workloads, sources)
    teacher = find_teacher(Path(asked["run"]), asked["subnet"], arguments.data_dir)
    taught = teacher.beside(workloads)
    named = {**sources[0], "teacher": asked}
    return Joined(taught.workloads, [named, named], taught.taps, taught.places)


def find_teacher(path: Path, subnet: str, data_dir: Path | None) -> Teacher:
    """A subnet of a run that was started from the command line.

    Raises:
        ConfigError: for a run or a subnet that is not there.
    """
    from naspipe.cli.run_source import run_source
    from naspipe.export.assembly import check_space, find_choices
    from naspipe.frontend.given.run import Run
    from naspipe.frontend.given.teachers import Teacher
    from naspipe.frontend.given.workloads import find_workload
    from naspipe.trace.results.run_directory import RunDirectory

    nothing = argparse.Namespace(space=None, data=None, run=path)
    source = run_source(nothing, RunDirectory(path).read_manifest())
    space = find_workload(source.space, source.scale, source.data, data_dir, source.sizes).space
    run = Run(space, path)
    check_space(run)
    return Teacher(run, find_choices(run, subnet))
