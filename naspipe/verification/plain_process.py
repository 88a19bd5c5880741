"""A forked process that computes plainly next to a run, and the connection to it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from naspipe.config.errors import NaspipeError
from naspipe.runtime.forking.fork import (
    FORK,
    end_all,
    leave_signals_to_launcher,
    obituary,
    quiet_fork,
)
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.verification.records import NotVerifiable

PRIORITY = 10
"""What is added to the niceness of the plain loop's process."""

GPU_SHARE = 0.25
"""How much of a GPU's memory the plain loop may take, so that the run has the rest."""

Work = Callable[[Connection], Iterator[Mapping[str, Any]]]
"""Given the connection to the launcher, yields what is to be sent there."""


class PlainProcess:
    """Runs a plain computation in a process that is forked from the launcher.

    It has a low priority, and it is the first to end when memory runs short.

    Args:
        work: the computation.
        threads: its intra-op threads.
        what: how messages call it.
    """

    def __init__(self, work: Work, threads: int, what: str) -> None:
        self._work, self._threads, self._what = work, threads, what
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None

    def start(self) -> None:
        """Fork the process; to be called before any stage is forked."""
        self._connection, theirs = FORK.Pipe()
        work = (self._work, self._threads, self._what, theirs)
        self._process = FORK.Process(target=_report_all, args=work, name="naspipe-verify")
        with quiet_fork():
            self._process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        """Send what the computation receives. If it has ended, :meth:`answers` says why."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.send_bytes(json.dumps(message).encode())

    def answers(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What it has sent, waiting so long for the first answer.

        The last one says ``because`` if the computation cannot continue, or ``done``.
        """
        while self._connection is not None and self._connection.poll(seconds):
            seconds = 0.0
            try:
                yield json.loads(self._connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                assert self._process is not None, "it is connected"
                yield {"because": f"because of the {self._what}: {obituary(self._process)}"}
                return

    def end(self) -> None:
        """End the process, if it is running."""
        if self._process is not None:
            end_all([self._process])
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _end_with_launcher() -> None:
    """Have the kernel end this process when the launcher is killed."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def _leave_resources_to_run() -> None:
    """Take time and memory only if the run does not need them.

    When memory runs short, the kernel ends this process first. The launcher then reports that the
    run was not verified.
    """
    os.nice(PRIORITY)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_gpu_memory(device: str) -> None:
    """Let this process take at most :data:`GPU_SHARE` of the memory of each GPU."""
    if device == "cuda":
        for number in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(GPU_SHARE, number)


def _report_all(work: Work, threads: int, what: str, connection: Connection) -> None:
    """Send what a computation yields, and then how it ended; the forked process does this."""
    leave_signals_to_launcher()
    _end_with_launcher()
    _leave_resources_to_run()

    def tell(answer: Mapping[str, Any]) -> None:
        connection.send_bytes(json.dumps(answer).encode())

    def compute() -> None:
        for answer in work(connection):
            tell(answer)

    try:
        in_own_thread(threads, compute)
        tell({"done": True})
    except NotVerifiable as error:
        tell({"because": str(error)})
    except torch.OutOfMemoryError:
        tell({"because": f"because the {what} needs more than {GPU_SHARE:.0%} of a GPU's memory"})
    except NaspipeError as error:
        tell({"because": f"because the {what} ended with: {error}"})
    except Exception as error:
        where = traceback.format_exc().strip().splitlines()[-1]
        tell({"because": f"because the {what} failed with {type(error).__name__}: {where}"})
