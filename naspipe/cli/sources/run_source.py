"""What a run was trained on, as the command line calls it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple


class RunSource(NamedTuple):
    """Names for :func:`naspipe.frontend.given.workloads.find_workload`."""

    space: str
    scale: str
    data: str | None
    """None where a user's own space was trained from Python, and no data are given."""
    sizes: dict[str, int]


def run_source(arguments: argparse.Namespace, manifest: Mapping[str, Any]) -> RunSource:
    """From the run's manifest, unless ``--space`` or ``--data`` say otherwise.

    Raises:
        ConfigError: for a run of a user's own space that was not started from the command line.
    """
    import search_spaces
    from naspipe.config.errors import ConfigError

    definition, source = manifest["definition"], manifest.get("source") or {}
    space = arguments.space or source.get("space") or definition["space"]
    is_named = space in (*search_spaces.names(), *search_spaces.networks())
    if ":" not in space and not is_named:
        raise ConfigError(
            f"run {arguments.run} trained {space}, a space of your own: expected --space "
            f"MODULE:ATTRIBUTE and --data MODULE:FUNCTION; a script is a module of its file's name"
        )
    data = arguments.data or source.get("data")
    if is_named and data is None:
        data = str(definition["data"]["name"])
    scale = source.get("scale") or definition.get("scale") or "tiny"
    return RunSource(space, scale, data, dict(source.get("sizes") or {}))
