"""How a run begins: anew, or by taking over what its directories hold.

New ones say ``planning`` from their first moment until the run begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import Subnet
from naspipe.frontend.checks.data_checks import check_same_data
from naspipe.frontend.checks.made_of_checks import check_made_of
from naspipe.frontend.training.generations import check_resumable
from naspipe.frontend.training.stream_jobs import choices_of, comes_new
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.measuring.stateless_layers import stateless_layers
from naspipe.runtime.processes.claim import Claim
from naspipe.trace.access.labels import describe_space, described, settings_of
from naspipe.trace.results.run_directory import RunDirectory

PLANNING = "planning"
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
        comes_later = workload.is_proposed or is_drawn
        choices = None if comes_later else choices_of(workload, subnets)
        earlier.append(check_resumable(directory, workload.definition, choices))
        check_same_data(directory, workload, earlier[-1])
        check_made_of(directory, workload)
        _check_settings(directory, workload, earlier[-1])
        _check_stateless(directory, workload, earlier[-1])
        stack.enter_context(Claim(directory.path))
    return earlier


def _check_stateless(
    directory: RunDirectory, workload: Workload, earlier: Mapping[str, Any]
) -> None:
    """Refuse a resume for which other layers count as stateless than when the run was begun.

    The access log holds no versions of stateless layers, so all attempts have to agree on them.
    Another version of torch may fail to make a layer on its meta device, which then counts as one
    with state.

    Raises:
        ConfigError: when the layers differ.
    """
    recorded = earlier.get("stateless", [])
    own = described(workload.space, stateless_layers(workload.space))["stateless"]
    if recorded != own:
        differing = ", ".join(sorted(set(recorded) ^ set(own)))
        raise ConfigError(
            f"{directory.path}: expected the same layers without state as when the run was begun, "
            f"found a difference in {differing}; resume it with the code and the version of torch "
            f"that it was begun with"
        )


def _check_settings(
    directory: RunDirectory, workload: Workload, earlier: Mapping[str, Any]
) -> None:
    """Options are recorded by their numbers, which mean something with the same settings only."""
    recorded, own = (
        settings_of(earlier.get("space", {})),
        settings_of(describe_space(workload.space)),
    )
    if recorded != own:
        pairs = [pair for pair in zip(recorded, own, strict=False) if len(set(pair)) > 1]
        expected, found = pairs[0] if pairs else (len(recorded), len(own))
        raise ConfigError(
            f"{directory.path}: expected the settings of elastic layers that the run was begun "
            f"with, {expected}, found {found}; train anew with init_from= for another phase"
        )


@contextmanager
def planning(records: Sequence[tuple[RunDirectory, Mapping[str, Any]]]) -> Iterator[None]:
    """Hold new directories, each with a manifest that says what is to be run.

    When what is done meanwhile fails before another status is written, they are removed: nothing
    is left of a run that never began.

    Raises:
        ConfigError: when one of them is there already, or cannot be made.
    """
    with ExitStack() as stack:
        above = [path for path in _parents(records) if not path.exists()]
        made: list[RunDirectory] = []
        stack.push(lambda kind, error, trace: _remove(made, above) if kind else None)
        for directory, manifest in records:
            directory.check_new()
            made.append(directory)
            directory.create()
            stack.enter_context(Claim(directory.path))
            directory.write_manifest(manifest)
        yield


def new_records(
    directories: Sequence[RunDirectory], workloads: Sequence[Workload], execution: Execution
) -> list[tuple[RunDirectory, dict[str, Any]]]:
    """Each stream's directory, and what is known of it before it is planned."""
    return [
        (
            directory,
            {
                "format": 1,
                "status": PLANNING,
                "definition": workload.definition.as_dict(),
                "requested": execution.as_dict(),
                "space": describe_space(workload.space),
            },
        )
        for directory, workload in zip(directories, workloads, strict=True)
    ]


def _parents(records: Sequence[tuple[RunDirectory, Mapping[str, Any]]]) -> list[Path]:
    """Of all directories, the deepest first."""
    found = {parent for directory, _ in records for parent in directory.path.absolute().parents}
    return sorted(found, key=lambda path: -len(path.parts))


def _remove(directories: Sequence[RunDirectory], above: Sequence[Path]) -> None:
    """Remove directories, and those above that were made for them alone."""
    for directory in directories:
        if _status(directory) in (None, PLANNING):
            shutil.rmtree(directory.path, ignore_errors=True)
    for path in above:
        with suppress(OSError):  # somebody else has something in it by now
            path.rmdir()


def _status(directory: RunDirectory) -> Any:
    return directory.read_manifest().get("status") if directory.manifest.exists() else None
