"""Results as JSON, for scripts and dashboards (``--json``)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from naspipe.trace.results.heartbeat_file import read_heartbeat

if TYPE_CHECKING:
    from naspipe.cli.ports import Options
    from naspipe.trace.results.run_directory import RunDirectory


def add_json(parser: Options, in_place_of: str) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help=f"print JSON in place of {in_place_of}")


def as_json(value: Any) -> str:
    """JSON that every reader accepts: what is infinite or no number is null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False)


def trained(directories: Iterable[RunDirectory]) -> list[dict[str, Any]]:
    """Of runs that are over: path, status, steps, the last loss and what was measured."""
    found = []
    for directory in directories:
        manifest = directory.read_manifest()
        found.append(
            {
                "run": str(directory.path),
                "status": manifest["status"],
                "steps": manifest["definition"].get("steps"),
                "loss": read_heartbeat(directory.path).get("loss"),
                "measured": manifest.get("measured", {}),
            }
        )
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
