"""Whether a training begins or goes on, and the runs that it takes over where it does."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.subnet import Subnet
from naspipe.frontend.checks.data_checks import check_same_data
from naspipe.frontend.training.generations import check_resumable
from naspipe.frontend.training.planning_record import PLANNING
from naspipe.frontend.training.stream_jobs import choices_of, comes_new
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.processes.claim import Claim
from naspipe.trace.results.run_directory import RunDirectory

IF_EXISTS = "if_exists"
"""What ``resume`` says for: begin, or go on with the run that is there."""


def asked_resume(resume: bool | str, run_dir: str | Path | None) -> dict[str, Any]:
    """What a user's ``resume`` makes of a training: its ``resumes`` and ``may_resume``.

    Raises:
        ConfigError: for another value, or without a directory to look into.
    """
    if resume not in (True, False, IF_EXISTS):
        raise ConfigError(f"resume: expected True, False or {IF_EXISTS!r}, found {resume!r:.80}")
    if resume and run_dir is None:
        raise ConfigError("resume: expected the run_dir of the run to go on with")
    return {"resumes": resume is True, "may_resume": resume == IF_EXISTS}


def is_begun(statuses: Iterable[str | None]) -> bool:
    """Whether there is something to go on with.

    Args:
        statuses: those of the manifests that are there; None for a run that has none.
    """
    return any(status not in (None, PLANNING) for status in statuses)


def goes_on(directories: Sequence[RunDirectory]) -> bool:
    """Whether directories hold a run to go on with; what was ended while it was planned goes.

    Raises:
        ConfigError: when somebody plans a run there just now, or something else is there.
    """
    found = {each: each.read_manifest() for each in directories if each.manifest.exists()}
    statuses = [str(manifest.get("status")) for manifest in found.values()]
    if is_begun(statuses):
        return True
    for directory in found:
        with Claim(directory.path):
            shutil.rmtree(directory.path, ignore_errors=True)
    return False


def take_over(
    stack: ExitStack, streams: Iterable[tuple[RunDirectory, Workload, tuple[Subnet, ...], bool]]
) -> list[dict[str, Any]]:
    """Hold the directories of a run that goes on; returns what their manifests say.

    Args:
        stack: holds them.
        streams: of each its directory, what is trained, its subnets, and whether more are drawn
            beside the training.

    Raises:
        ConfigError: for a directory that is another run's, or that somebody trains.
    """
    earlier = []
    for directory, workload, subnets, is_drawn in streams:
        if comes_new(directory, workload):
            continue
        comes_later = workload.make_strategy or is_drawn
        choices = None if comes_later else choices_of(workload, subnets)
        earlier.append(check_resumable(directory, workload.definition, choices))
        check_same_data(directory, workload, earlier[-1])
        stack.enter_context(Claim(directory.path))
    return earlier
