"""Seeded moments of a run at which a teacher ends, is killed, joins from elsewhere, or leaves."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from naspipe.distill.label_service import Teaching, teach
from naspipe.distill.teacher_card import own_pair
from scripts.elastic_workloads import Case
from scripts.processes import children

QUICK = {"labels": "service", "teacher_ttl": 0.8, "labels_ahead": 6, "labels_again": 3}
"""So that a teacher that goes is missed soon, and few labels are held."""

EACH = 5
"""Moments of a run."""

_FORK = multiprocessing.get_context("fork")


class Moments:
    """What happens to a run's teachers; a context manager around the run.

    Args:
        seed: of the moments: losses that there are, and what happens then.
        case: whose teacher joins.
        path: of the run.
        steps: of the run.
    """

    def __init__(self, seed: int, case: Case, path: Path, steps: int) -> None:
        self._draws = random.Random(seed)
        self._losses, self._steps = path / "losses.jsonl", steps
        self.done: list[str] = []
        """What happened, and at which step."""
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        public, _ = own_pair(folder / "key")
        (folder / "known").write_text(f"{public}\n")
        self.settings: dict[str, Any] = {
            "teacher_registry": address, "teacher_keys": str(folder / "known"),
        }  # fmt: skip
        self._is_over = threading.Event()
        self._joins, self._left = _FORK.Event(), False
        way = Teaching(registry=address, key=folder / "key", ttl_seconds=0.8)
        self._other: BaseProcess = _FORK.Process(target=_elsewhere, args=(self._joins, case, way))
        self._thread = threading.Thread(target=self._happen)

    def __enter__(self) -> Self:
        self._other.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._other.kill()
        self._other.join()
        self._folder.cleanup()

    def _happen(self) -> None:
        """At each of its losses, one thing; what finds no teacher is left out."""
        moments = sorted(self._draws.sample(range(1, self._steps - 4), EACH))
        for moment in moments:
            while self._count() < moment:
                if self._is_over.wait(0.01):
                    return
            what = self._one(self._draws.choice(["killed", "ended", "other", "other"]))
            if what and not self._is_over.is_set():
                self.done.append(f"{what} at {self._count()}")

    def _one(self, what: str) -> str:
        """What has happened; empty for nothing."""
        if what == "other" and not self._joins.is_set():
            self._joins.set()
            return "joined"
        if what == "other" and not self._left:
            self._left = True
            self._other.terminate()
            return "left"
        number = signal.SIGKILL if what == "killed" else signal.SIGTERM
        if pids := own_teachers():
            with suppress(ProcessLookupError):
                os.kill(self._draws.choice(pids), number)
                return "killed" if what == "killed" else "ended"
        return ""

    def _count(self) -> int:
        with suppress(FileNotFoundError):
            return self._losses.read_bytes().count(b"\n")
        return 0


def own_teachers() -> list[int]:
    """Of the run that this process trains."""
    pools = [each for each in multiprocessing.active_children() if each.name == "naspipe-teachers"]
    return [pid for pool in pools if pool.pid is not None for pid in children(pool.pid)]


def _elsewhere(joins: Any, case: Case, way: Teaching) -> None:
    """Wait for the moment, find the run's registry, and teach until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    joins.wait()
    for _ in range(50):
        with suppress(Exception):  # the registry may not listen yet
            teach(case.teacher, lambda record: case.data, way, lambda text: None)
            break
        time.sleep(0.1)
    os._exit(0)
