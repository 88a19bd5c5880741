"""Signs of life of a launcher: how much memory its processes have, and a heartbeat every 2 s."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from naspipe.trace.results.heartbeat_file import PULSE_SECONDS, write_heartbeat

_LOOK_SECONDS = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ResidentMemory:
    """Of this process and all that it has started on this host, looked at once a second at most.

    Pages that several of them share count for each.
    """

    def __init__(self) -> None:
        self._bytes, self._looked = 0, -_LOOK_SECONDS

    def bytes(self) -> int | None:
        """In bytes; None where the system does not say."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._bytes = sum(map(_resident, _family(os.getpid())))
        return self._bytes or None


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


class Pulse:
    """Leaves a heartbeat in each run directory, at once and every 2 s; a context manager.

    Args:
        directories: of each stream.
        vitals: what is known of a stream, by its number; called on another thread.
    """

    def __init__(
        self, directories: Sequence[Path], vitals: Callable[[int], Mapping[str, Any]]
    ) -> None:
        self._directories = tuple(directories)
        self._vitals = vitals
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="naspipe-pulse", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._beat()

    def _run(self) -> None:
        while not self._is_over.wait(PULSE_SECONDS):
            self._beat()

    def _beat(self) -> None:
        for stream, directory in enumerate(self._directories):
            write_heartbeat(directory, self._vitals(stream))
