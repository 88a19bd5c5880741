"""``heartbeat.json``: the last sign of life of a run, replaced every few seconds while it goes on.

It has ``time`` (seconds since 1970), ``host`` and ``pid`` of the launcher, ``step`` (optimizer
steps that are done) of ``steps``, ``steps_per_second`` of this life, ``pending`` (subnets under
way), ``resident_bytes`` (of the launcher's processes on its host), ``last_step_time`` (when a pass
was told last, since 1970) and ``loss`` (the last one). What is not known is null.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from naspipe.config.text import parse_json

HEARTBEAT = "heartbeat.json"
"""In a run directory."""
PULSE_SECONDS = 2.0
"""From one to the next."""


def write_heartbeat(directory: Path, values: Mapping[str, Any]) -> None:
    """Replace the file; a disk that has no room for it keeps the one before."""
    path = directory / HEARTBEAT
    temporary = directory / f".{HEARTBEAT}.{os.getpid()}.tmp"
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    with suppress(OSError):
        try:
            whose = {"time": time.time(), "host": os.uname().nodename, "pid": os.getpid()}
            temporary.write_text(json.dumps({**whose, **plain}) + "\n")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read_heartbeat(directory: Path) -> dict[str, Any]:
    """The last sign of life; empty where there is none."""
    try:
        found = parse_json((directory / HEARTBEAT).read_bytes())
    except (OSError, ValueError):
        return {}
    is_one = isinstance(found, dict) and is_time(found.get("time")) and _is_host(found)
    return found if is_one else {}


def is_time(value: object) -> TypeGuard[float]:
    """Whether a file may mean a time in seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def _is_host(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("host"), str) and type(found.get("pid")) is int
