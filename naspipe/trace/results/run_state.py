"""What a run is really at: its manifest, who holds its lock, and its last sign of life decide.

A manifest that says ``running`` was written by a process that may have been killed since. The
lock is the kernel's and ends with its holder, so it is asked first. The heartbeat decides where
the lock cannot say: on a file system whose locks other hosts do not see.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.trace.results.heartbeat_file import is_time, read_heartbeat
from naspipe.trace.results.run_directory import RunDirectory

LOCK = ".lock"
"""In a run directory; its launcher holds it."""
DIED = "died"
"""Of a run that ended without a word: killed, or its host went down."""

_UNDER_WAY = ("planning", "running")
_FRESH_SECONDS = 20.0
"""A heartbeat that is older is no sign of life."""
_STALLED_SECONDS = 60.0
_STALLED_STEPS = 5.0
"""A run without a step for longer than both, the second in its own steps, stalls."""


class RunState(NamedTuple):
    """What is known of a run from outside."""

    status: str
    """That of the manifest, or ``died``."""
    said: str
    """The same in words, for a run that is not complete."""
    beat: Mapping[str, Any]
    """Its heartbeat, empty where there is none."""
    seen: float | None
    """Its last sign of life, in seconds since 1970."""

    @property
    def last_step(self) -> float | None:
        """When its last step was, in seconds since 1970; None where that is not known."""
        found = self.beat.get("last_step_time")
        return found if is_time(found) else None

    def is_stalled(self, now: float) -> bool:
        """Whether it goes on, but has been without a step for far longer than its steps take."""
        if self.status != "running" or self.last_step is None:
            return False
        speed = self.beat.get("steps_per_second")
        usual = 1.0 / speed if isinstance(speed, int | float) and speed > 0 else 0.0
        return now - self.last_step > max(_STALLED_SECONDS, _STALLED_STEPS * usual)


def run_state(directory: RunDirectory, manifest: Mapping[str, Any]) -> RunState:
    """What a run is at; reads its heartbeat and asks for its lock."""
    written = str(manifest.get("status"))
    beat = read_heartbeat(directory.path)
    seen = float(beat["time"]) if beat else _changed(directory.manifest)
    silence = max(0.0, time.time() - (seen or 0.0))
    is_here = bool(beat) and beat["host"] == os.uname().nodename
    held = False
    if written in _UNDER_WAY:
        # To open a lock's file and close it again would let go of a lock of this very process.
        held = (is_here and beat["pid"] == os.getpid()) or is_held(directory.path / LOCK)
    status = decide(written, held, is_here or not beat, silence)
    return RunState(status, _said(status, written, beat, silence), beat, seen)


def decide(written: str, is_held: bool, is_here: bool, silence: float) -> str:
    """The status of a run.

    Args:
        written: what its manifest says.
        is_held: whether a process holds its lock, as far as this host can see.
        is_here: whether it would be one of this host.
        silence: seconds since its last sign of life.
    """
    if written not in _UNDER_WAY or is_held:
        return written
    return written if not is_here and silence < _FRESH_SECONDS else DIED


def is_held(lock: Path) -> bool:
    """Whether another process holds a lock; nothing is taken."""
    try:
        with lock.open("rb") as file:
            if sys.platform != "linux":
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
            asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
            return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False


def ago(seconds: float) -> str:
    """A time that has passed, in words."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _said(status: str, written: str, beat: Mapping[str, Any], silence: float) -> str:
    where = f" on {beat['host']:.80}" if beat else ""
    if status == DIED:
        return (
            f"it ended without a word: its manifest says {written!r}, but no process holds it; "
            f"last sign of life {ago(silence)}{where}"
        )
    said = f"its manifest says {written!r:.80}"
    if status not in _UNDER_WAY or not beat:
        return said
    who = f"process {beat['pid']}{where}"
    how_far = f"step {beat.get('step')} of {beat.get('steps')}"
    return f"{said}: {who} is at it, {how_far}, last sign of life {ago(silence)}"


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
