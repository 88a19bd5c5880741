"""What a run is made of beside its definition's names: recorded as it begins, the same later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.settings.given_code import GivenCode
from naspipe.runtime.jobs.captured import captured
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.sketching.structures import structures
from naspipe.trace.access.labels import describe_space
from naspipe.trace.reading.made_of import as_made_of, first_unlike, read_made_of
from naspipe.trace.results.run_directory import RunDirectory
from naspipe.trace.storage.whole_files import write_json


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
    return {**structures(workload.space), "captured": said}


def _functions(workload: Workload) -> Iterator[tuple[str, object]]:
    """Those of the user's, by whose they are."""
    yield "loss", workload.loss
    yield from ((f"metric {name}", each) for name, each in sorted(workload.metrics.items()))
    if isinstance(workload.recipe.optimizer, GivenCode):
        yield "optimizer", workload.recipe.optimizer.code
