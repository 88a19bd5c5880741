"""Run a command and see how much of its time it waited for a processor that others had."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECONDS = 0.2


class Watched(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str
    waited: float
    """Of the time in which its threads could have run, the share in which they did not."""


def run_watched(command: list[str]) -> Watched:
    """Run in a session of its own; the threads of that session are looked at now and then."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    seen: dict[Path, tuple[int, int]] = {}
    while True:
        try:
            out, err = process.communicate(timeout=SAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            seen.update(_times(process.pid))
            continue
        ran, waited = (sum(times[n] for times in seen.values()) for n in (0, 1))
        return Watched(process.returncode, out, err, waited / max(1, ran + waited))


def _times(session: int) -> dict[Path, tuple[int, int]]:
    """Nanoseconds that each thread of a session ran, and those that it waited to run."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            for thread in (process / "task").iterdir():
                ran, waited, _ = (thread / "schedstat").read_text().split()
                found[thread] = int(ran), int(waited)
        except OSError:  # it ended meanwhile
            continue
    return found
