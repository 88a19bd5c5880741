"""``naspipe.open_run``: a run that is there already, by its directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import search_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.frontend.given.run import Run, check_space
from naspipe.frontend.given.workloads import as_trained, find_workload
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.results.run_directory import RunDirectory

_DEFINED = ("space", "scale", "steps", "rules", "recipe", "data")


def open_run(path: str | Path, space: Space | None = None) -> Run:
    """A run by its directory: one that ended, failed, was interrupted or still goes on.

    Losses, metrics, validations and the manifest need nothing else. The space, and with it
    :meth:`naspipe.Run.layer`, is found by its name when it is first asked for, as a resume from
    the command line finds it; one of your own that was trained from Python has to be given.

    Args:
        path: the run directory.
        space: what the run trained.

    Raises:
        ConfigError: for what is no run directory, or another space than the one it trained.
    """
    place = Path(path)
    _check_single(place)
    manifest = RunDirectory(place).read_manifest()
    if not isinstance(manifest.get("status"), str) or not _is_defined(manifest):
        raise ConfigError(
            f"{place}: expected the manifest of a run, found one without a definition"
        )
    SpaceLabels(manifest["space"])
    run = Run(space or partial(_find_space, place, manifest), place)
    if space is not None:
        check_space(run)
    return run


def _check_single(place: Path) -> None:
    """Streams and blocks of one training are runs of their own, below one folder."""
    inside = sorted(each.parent for each in place.glob("*/manifest.json"))
    if inside and not (place / "manifest.json").exists():
        raise ConfigError(
            f"{place}: expected one run, found a folder of several; open one of them, as in "
            f"naspipe.open_run({str(inside[0])!r})"
        )


def _is_defined(manifest: dict[str, Any]) -> bool:
    definition = manifest.get("definition")
    return (
        isinstance(definition, dict)
        and isinstance(manifest.get("space"), dict)
        and all(name in definition for name in _DEFINED)
    )


def _find_space(place: Path, manifest: dict[str, Any]) -> Space:
    definition, source = manifest["definition"], manifest.get("source") or {}
    name = str(source.get("space") or definition["space"])
    if ":" not in name and name not in (*search_spaces.names(), *search_spaces.networks()):
        raise ConfigError(
            f"{place} trained {name}, a space of your own: expected it as in "
            f"naspipe.open_run({str(place)!r}, space)"
        )
    data = source.get("data") or definition["data"].get("name")
    scale = str(source.get("scale") or definition["scale"] or "tiny")
    named = find_workload(name, scale, data, None, source.get("sizes"))
    run = Run(as_trained(named, manifest).space, place)
    check_space(run)
    return run.space
