"""A run directory belongs to one launcher at a time; what an earlier one left running is ended."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Self

from naspipe.config.errors import ConfigError
from naspipe.config.text import parse_json
from naspipe.runtime.wire.private_directories import SOCKETS_PREFIX
from naspipe.trace.results.run_state import LOCK
from naspipe.trace.storage.whole_files import write_json

_PROCESSES = ".processes.json"


class Claim:
    """Holds a run directory for this process; a context manager.

    The lock is the kernel's and ends with the process, however that ends. Stages, which are
    forked, do not inherit it: a launcher that was killed never blocks a resume, and stages of
    it that are still there (stopped, or on their way out) are killed.

    Args:
        directory: of the run; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = (self._directory / LOCK).open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"run directory {self._directory} cannot be written: {error.strerror}"
            ) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
            self._file.close()
            raise ConfigError(
                f"run directory {self._directory}: expected one that nobody trains, found process "
                f"{owner} at it; wait for it, or end it first"
            ) from error
        self._file.truncate(0)
        with suppress(OSError):  # it only helps who reads it; what holds is the lock
            self._file.write(str(os.getpid()).encode())
        end_processes(self._directory)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            (self._directory / _PROCESSES).unlink(missing_ok=True)
            self._file.close()


def record_processes(directory: Path, pids: Iterable[int], sockets: Path | None = None) -> None:
    """Note the stages of a run and the directory of their sockets.

    So that a later life can end the stages that outlive their launcher, and tidy up after it.
    """
    started = {str(pid): _started(pid) for pid in pids}
    found = {"host": os.uname().nodename, "started": started, "sockets": str(sockets or "")}
    write_json(directory / _PROCESSES, found)


def end_processes(directory: Path) -> list[int]:
    """Kill the recorded stages that are still there; returns their process IDs.

    A process that only has the number of one, but began at another time, is left alone.
    """
    path = directory / _PROCESSES
    try:
        found = parse_json(path.read_bytes())
        started = {int(pid): int(ticks) for pid, ticks in found["started"].items()}
        is_here = found["host"] == os.uname().nodename
        sockets = Path(found["sockets"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    ended = []
    for pid, ticks in started.items():
        if is_here and ticks and _started(pid) == ticks:
            os.kill(pid, signal.SIGKILL)
            ended.append(pid)
    is_ours = sockets.name.startswith(SOCKETS_PREFIX)
    if is_here and is_ours and sockets.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(sockets, ignore_errors=True)
    path.unlink(missing_ok=True)
    return ended


def _started(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 when that cannot be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
