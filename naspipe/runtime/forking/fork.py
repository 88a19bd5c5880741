"""Forked processes: how they are started, how they are ended, and how they ended."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.process import BaseProcess

from naspipe.data.keyed.file_offsets import own_offsets


class _Process(ForkProcess):
    """Reads files that were opened before the fork at places of its own."""

    def run(self) -> None:
        """See :func:`own_offsets`."""
        own_offsets()
        super().run()


class _Context(ForkContext):
    Process = _Process


FORK = _Context()

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to end: Ctrl-C, a scheduler, a terminal that is closed."""

WARNING = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a batch scheduler such as Slurm sends before it ends a job. They ask a run to end,
too, unless the user has a handler of their own for them."""


_LIKELY: dict[int, str] = {
    signal.SIGKILL: " (SIGKILL: by the system, out of memory, or by somebody)",
    signal.SIGSEGV: " (SIGSEGV: native code has crashed)",
    signal.SIGBUS: " (SIGBUS: memory or /dev/shm is full)",
    signal.SIGABRT: " (SIGABRT: native code gave up)",
}


def leave_signals_to_launcher() -> None:
    """Ignore them in a forked process: the launcher answers for all, and needs it for that."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    for number in WARNING:
        handler = signal.getsignal(number)
        is_ours = getattr(handler, "__module__", "").startswith("naspipe.")
        if handler is signal.SIG_DFL or is_ours:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def quiet_fork() -> Iterator[None]:
    """Fork without Python 3.12's warning about threads.

    torch and numpy keep idle pools, which a forked process never touches: see
    :mod:`naspipe.runtime.forking.own_thread`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def end_all(processes: Collection[BaseProcess]) -> None:
    """Leave none of these processes behind: what they wrote can bear it."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
        process.close()


def obituary(process: BaseProcess) -> str:
    """How a process ended that did not say so itself."""
    process.join(1)
    code = process.exitcode
    if code is not None and code < 0:
        likely = _LIKELY.get(-code, "")
        return f"its process was killed by signal {-code}{likely}"
    return f"its process ended with exit status {code} and no report"
