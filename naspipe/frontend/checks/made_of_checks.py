"""What a run is made of beside its definition's names: recorded as it begins, the same later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.settings import GivenCode
from naspipe.config.space import Space
from naspipe.config.user_code import is_same_name
from naspipe.frontend.checks.code_digests import users_digests
from naspipe.runtime.jobs.captured import captured
from naspipe.runtime.jobs.loss_values import described
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.sketching.structures import structures
from naspipe.trace.access.labels import describe_space
from naspipe.trace.reading.made_of import (
    MadeOf,
    as_made_of,
    first_unlike,
    otherwise_written,
    read_made_of,
)
from naspipe.trace.results.run_directory import RunDirectory
from naspipe.trace.storage.whole_files import write_json

_FEW = 3
"""Names that a line says."""


def record_made_of(directory: RunDirectory, workload: Workload) -> None:
    """Write what a new run is made of into its directory."""
    write_json(directory.made_of, _made_of(workload))


def check_made_of(directory: RunDirectory, workload: Workload) -> None:
    """A run that goes on must be made of what it began with, as far as it says.

    Raises:
        ConfigError: naming the first layer, or captured value, that is something else.
    """
    earlier = read_made_of(directory.made_of)
    if earlier is None:
        return
    now = as_made_of(_made_of(workload), directory.made_of)
    if found := first_unlike(describe_space(workload.space), earlier, now):
        aside = f" ({found.aside})" if found.aside else ""
        raise ConfigError(
            f"{directory.path} is another run: its {found.what} was {found.one}, and is now "
            f"{found.other}{aside}; resume it as it was defined, or choose a new --run-dir"
        )


def changed_code_note(directory: RunDirectory, workload: Workload) -> str | None:
    """A line about files of the user's that have changed since a run began."""
    earlier = read_made_of(directory.made_of)
    if earlier is None:
        return None
    names = otherwise_written(earlier, earlier._replace(code=users_digests([workload])))
    if not names:
        return None
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return (
        f"{directory.path} was begun with other code: {', '.join(names[:_FEW])}{more} changed "
        f"since; where that changes what is computed, no plain loop has the bits of this run"
    )


def check_run_layers(directory: RunDirectory, space: Space) -> None:
    """A run's space, given anew, must have the layers that the run trained.

    Args:
        directory: the run's.
        space: of the same labels and candidates.

    Raises:
        ConfigError: naming the first layer that is something else.
    """
    if (earlier := read_made_of(directory.made_of)) is not None:
        now = as_made_of({**structures(space), "captured": {}, "files": {}}, directory.made_of)
        _expect(directory, describe_space(space), earlier, now)


def check_run_loss(directory: RunDirectory, space: Space, loss: object) -> None:
    """A run's loss, given anew, must be of the same name and capture what it captured.

    One of naspipe's own for lessons needs a teacher's outputs, so any other may judge its run.

    Raises:
        ConfigError: naming the loss, or the first captured value that is something else.
    """
    recorded, found = directory.read_manifest()["definition"]["loss"], described(loss)
    is_of_lessons = recorded.startswith("naspipe.") and not found.startswith("naspipe.")
    if not (is_of_lessons or is_same_name(found, recorded)):
        raise ConfigError(
            f"run {directory.path}: expected its loss as it was trained, {recorded}, found "
            f"{found}; give the run's own"
        )
    if (earlier := read_made_of(directory.made_of)) is not None:
        own = {} if is_of_lessons else {"loss": captured(loss).values}
        now = earlier._replace(captured=own)
        _expect(directory, describe_space(space), earlier, now)


def _expect(directory: RunDirectory, space: Mapping[str, Any], was: MadeOf, now: MadeOf) -> None:
    if found := first_unlike(space, was, now):
        aside = f" ({found.aside})" if found.aside else ""
        raise ConfigError(
            f"run {directory.path}: expected its {found.what} as it was trained, {found.one}, "
            f"found {found.other}{aside}; give the run's own"
        )


def untold_notes(workloads: Sequence[Workload]) -> list[str]:
    """A line about each function that captures what no later resume can compare."""
    notes = []
    for workload in workloads:
        for whose, function in _functions(workload):
            if untold := captured(function).untold:
                said = ", ".join(
                    f"{name} (of type {kind})" for name, kind in sorted(untold.items())
                )
                notes.append(
                    f"{whose}: a resume cannot tell whether {said} is the same, so keep it as it "
                    f"is; captured numbers, texts and tensors are compared"
                )
    return list(dict.fromkeys(notes))


def _made_of(workload: Workload) -> dict[str, Any]:
    said: Mapping[str, Any] = {
        whose: captured(function).values for whose, function in _functions(workload)
    }
    code = users_digests([workload])
    return {**structures(workload.space), "captured": said, "files": code}


def _functions(workload: Workload) -> Iterator[tuple[str, object]]:
    """Those of the user's, by whose they are."""
    yield "loss", workload.loss
    yield from ((f"metric {name}", each) for name, each in sorted(workload.metrics.items()))
    if isinstance(workload.recipe.optimizer, GivenCode):
        yield "optimizer", workload.recipe.optimizer.code
