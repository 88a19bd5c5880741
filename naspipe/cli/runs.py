"""List the runs below a directory: status, step, speed and the time of their last activity.

Searches are listed below their run; the steps of a search are the subnets that it has evaluated.

A run that is marked as running in its manifest, but that no process holds any more, is listed as
died. A live run is stalled if it has completed no step for a minute and for the time of five steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from naspipe.cli.output import add_json, print_table
from naspipe.config.errors import ConfigError
from naspipe.search.search_directory import PREFIX
from naspipe.store.run_directory import RunDirectory, ago, run_state

_EXAMPLE = """\
examples:
  naspipe runs                       the runs below ./runs
  naspipe runs /shared/experiments   the runs below another directory
  naspipe runs --json                as JSON, for scripts and dashboards

status: complete, running, planning, interrupted (by a signal, after a checkpoint), failed, or
died (the run ended without reporting it: it was killed, or its host went down)
"""

_MANIFEST = "manifest.json"
_MOST_DEPTH = 6
_COLUMNS = ("run", "status", "step", "steps/s", "last step", "last seen", "host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path("runs"),
        help="directory that contains the runs (default: runs)",
    )
    add_json(parser, "a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; return the exit status."""
    base: Path = arguments.directory
    if not base.is_dir():
        raise ConfigError(f"{base}: expected a directory with runs in it, found none")
    found = [_described(base, directory) for directory in _runs(base, _MOST_DEPTH)]
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    left = [head for head in _COLUMNS if head not in ("step", "steps/s")]
    rows = list(map(_cells, found))
    print_table(_COLUMNS, rows, left=left, fold=("run",), overflow="crop", width=None)
    return 0


def _runs(place: Path, depth: int) -> Iterator[RunDirectory]:
    """Yield the run at ``place``, or else all runs below it, each followed by its searches."""
    directory = RunDirectory(place)
    if (place / _MANIFEST).is_file():
        try:
            is_run = isinstance(directory.read_manifest().get("definition"), dict)
        except ConfigError:
            is_run = False
        if is_run:
            yield directory
            searches = sorted(place.glob(f"{PREFIX}*/{_MANIFEST}"))
            yield from (RunDirectory(each.parent) for each in searches)
        return
    try:
        inner = sorted(each for each in place.iterdir() if each.is_dir()) if depth else []
    except OSError:
        inner = []
    for each in inner:
        if not each.name.startswith(".") and not each.is_symlink():
            yield from _runs(each, depth - 1)


def _described(base: Path, directory: RunDirectory) -> dict[str, Any]:
    manifest = directory.read_manifest()
    state = run_state(directory, manifest)
    definition = manifest.get("definition", {})
    steps = _number(definition.get("steps", definition.get("budget")))
    is_complete = state.status == "complete"
    measured = manifest.get("measured")
    speeds = measured if isinstance(measured, dict) else {}
    speed = speeds.get("steps_per_second", speeds.get("subnets_per_second"))
    origin = manifest.get("provenance")
    hosts = origin.get("hosts") if isinstance(origin, dict) else None
    host = ", ".join(map(str, hosts)) if isinstance(hosts, list) else None
    failure = str(manifest.get("failure") or "").splitlines()
    return {
        "run": str(directory.path.relative_to(base)) if directory.path != base else ".",
        "path": str(directory.path),
        "status": state.status,
        "step": steps if is_complete else _number(state.beat.get("step")),
        "steps": steps,
        "steps_per_second": _number(speed if is_complete else state.beat.get("steps_per_second")),
        "last_step": state.last_step,
        "is_stalled": state.is_stalled(time.time()),
        "seen": state.seen,
        "host": str(state.beat["host"]) if state.beat else host,
        "failure": failure[0][:500] if failure else None,
    }


def _number(value: Any) -> float | None:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_one else None


def _cells(each: dict[str, Any]) -> tuple[str, ...]:
    def since(moment: float | None) -> str:
        return "-" if moment is None else ago(max(0.0, time.time() - moment))

    step = "-" if each["step"] is None else f"{each['step']:g}"
    speed = each["steps_per_second"]
    return (
        each["run"],
        each["status"],
        f"{step}/{each['steps']:g}" if each["steps"] else step,
        "-" if speed is None else f"{speed:.3g}",
        since(each["last_step"]) + (", stalled" if each["is_stalled"] else ""),
        since(each["seen"]),
        each["host"] or "-",
    )
