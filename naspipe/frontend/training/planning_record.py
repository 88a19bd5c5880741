"""New run directories from their first moment: they say ``planning`` until the run begins."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from naspipe.core.config import Execution
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.processes.claim import Claim
from naspipe.trace.access.labels import describe_space
from naspipe.trace.results.run_directory import RunDirectory

PLANNING = "planning"


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
