"""Forked processes: stages, and work done in a separate process to keep this one forkable."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import signal
import stat
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch

from naspipe.config.errors import ConfigError, StageFailedError, TransportError

T = TypeVar("T")


def in_own_thread(threads: int, work: Callable[[], T]) -> T:
    """Call ``work``, which computes with ``threads`` intra-op threads, in a forked process.

    OpenMP ties helper threads to the thread that started them. If the parent has also computed, the
    only thread of a forked process expects helpers that remained in the parent, and waits for them
    forever. A new thread gets new helpers. Work on one thread needs no helpers, and everything that
    it calls, including user code, computes on one thread. Errors of ``work`` are raised here.
    """
    if threads == 1:
        torch.set_num_threads(1)
        return work()
    results: list[T] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised in the waiting thread
            failures.append(error)

    thread = threading.Thread(target=copy_context().run, args=(call,), name="naspipe-compute")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


@contextmanager
def without_helpers() -> Iterator[None]:
    """Compute on the calling thread alone, in a process that may have been forked.

    If its parent has computed, this process would wait forever for the parent's helper threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def own_offsets() -> None:
    """Reopen every file that this process has inherited for reading, at the same position.

    A forked process shares the file offset of each open file with its parent and siblings. If a
    data set opened a file before the fork, a ``seek`` in one process moves the position at which
    another process reads, and batches get the wrong items.

    Call this first in a forked process. Descriptors keep their numbers, so file objects, archives
    and C libraries that hold them continue to work. Writable files, pipes, sockets and devices are
    not reopened, nor are files for which this fails.
    """
    with suppress(OSError):
        for path in [*Path("/proc/self/fd").iterdir()]:
            with suppress(OSError, ValueError):
                _reopen(int(path.name))


def _reopen(descriptor: int) -> None:
    if descriptor <= 2 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_ACCMODE != os.O_RDONLY or flags & getattr(os, "O_PATH", 0):
        return
    inherits = os.get_inheritable(descriptor)
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    again = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    try:
        os.lseek(again, place, os.SEEK_SET)
        os.dup2(again, descriptor, inheritable=inherits)
    finally:
        os.close(again)


class _Process(ForkProcess):
    """A forked process with separate file offsets; see :func:`own_offsets`."""

    def run(self) -> None:
        own_offsets()
        super().run()


class _Context(ForkContext):
    Process = _Process


FORK = _Context()

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of a run: from Ctrl-C, a scheduler or a closed terminal."""

WARNING = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a batch scheduler such as Slurm sends before it ends a job. They also request the
end of a run, unless the user has handlers for them.
"""


_LIKELY: dict[int, str] = {
    signal.SIGKILL: " (SIGKILL: by the system, out of memory, or by somebody)",
    signal.SIGSEGV: " (SIGSEGV: native code has crashed)",
    signal.SIGBUS: " (SIGBUS: memory or /dev/shm is full)",
    signal.SIGABRT: " (SIGABRT: native code gave up)",
}


def leave_signals_to_launcher() -> None:
    """Ignore these signals in a forked process, because the launcher handles them for all."""
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

    torch and numpy keep idle thread pools, which a forked process never uses.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def end_all(processes: Collection[BaseProcess]) -> None:
    """Kill these processes; their output files tolerate this."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
        process.close()


def obituary(process: BaseProcess) -> str:
    """Describe how a process ended without a report."""
    process.join(1)
    code = process.exitcode
    if code is not None and code < 0:
        likely = _LIKELY.get(-code, "")
        return f"its process was killed by signal {-code}{likely}"
    return f"its process ended with exit status {code} and no report"


SILENCE_SECONDS = 600.0
"""Default of the maximum time between two reports of progress."""

Work = Callable[[Callable[[], None]], dict[str, Any]]
"""Returns JSON, and calls its argument regularly to report progress."""


SLOW_SECONDS = 1.0


def done_apart(
    work: Work,
    what: str,
    silence_seconds: float = SILENCE_SECONDS,
    say: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run ``work`` in a forked process, and return its result.

    Args:
        work: the function to run.
        what: the name of the work in messages.
        silence_seconds: maximum time between two reports of progress.
        say: called if the work takes more than a second.

    Raises:
        ConfigError: if the work raises it.
        StageFailedError: if the work raises another error, or its process ends.
        TransportError: if the work reports no progress for too long.
    """
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_main, args=(work, sender), name="naspipe-apart")
    with receiver, quiet_fork():
        process.start()
        sender.close()
        try:
            if say is not None and not receiver.poll(SLOW_SECONDS):
                say()
            answer: dict[str, Any] = {"goes on": True}
            while "goes on" in answer:
                if not receiver.poll(silence_seconds):
                    raise TransportError(f"{what} was silent for {silence_seconds:g} s")
                answer = json.loads(receiver.recv_bytes())
        except EOFError:
            raise StageFailedError(0, what, obituary(process)) from None
        finally:
            end_all([process])
    if refusal := answer.get("refusal"):
        raise ConfigError(refusal)
    if failure := answer.get("failure"):
        raise StageFailedError(0, what, failure)
    done: dict[str, Any] = answer["done"]
    return done


def _main(work: Work, sender: Connection) -> None:
    def go_on() -> None:
        sender.send_bytes(json.dumps({"goes on": True}).encode())

    try:
        # The helpers of the caller remained in its process. Work that needs several threads starts
        # new ones.
        answer: dict[str, Any] = {"done": in_own_thread(1, lambda: work(go_on))}
    except ConfigError as error:
        answer = {"refusal": str(error)}
    except Exception:
        answer = {"failure": traceback.format_exc()}
    sender.send_bytes(json.dumps(answer).encode())


_BACKWARD = "Unable to handle autograd's threading"
"""Part of torch's message about a backward in a process whose parent has computed one."""


def may_compute_here(device: str = "cpu") -> bool:
    """Return True if this process stays forkable when it computes.

    This is the case on the CPU if torch has no accelerator.
    """
    return device == "cpu" and torch.accelerator.current_accelerator() is None


def done_fit(work: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    """Return the result of ``work``, run in a fork if it would make this process unforkable."""
    return work() if may_compute_here() else done_apart(lambda _: work(), what)


def check_fit_for_forking(device: str = "cpu") -> None:
    """Check whether processes forked from this one can compute on a device.

    They cannot if this process has started CUDA, or computed a backward next to an accelerator.
    """
    if device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            "this process has used CUDA already, so stages cannot be forked from it; "
            "start training before the first CUDA call, or use the naspipe command"
        )
    if not may_compute_here():
        done_apart(_backward, "a backward in a process of its own")


def _backward(_: Callable[[], None]) -> dict[str, Any]:
    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if _BACKWARD not in str(error):
            raise
        raise ConfigError(
            f"process {os.getppid()}, which was to fork stages, has computed a backward already, "
            f"and beside an accelerator torch then refuses every backward in what is forked from "
            f"it; start training before the first backward, or use the naspipe command"
        ) from None
    return {}


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for its settings; see ``man mallopt``."""
_LARGEST = 32 << 20
"""Size in bytes above which memory is mapped separately. It is the maximum of glibc."""
_KEPT = (1 << 31) - 1
_USERS = (
    "GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip


@contextmanager
def kept_heap() -> Iterator[None]:
    """Keep freed memory within the context, and return it to the system afterwards.

    The thresholds remain set, because glibc cannot return to adapting them. This does nothing if
    the user has set any of them, or with a different C library.
    """
    library = ctypes.CDLL(None)
    set_option = getattr(library, "mallopt", None)
    give_back = getattr(library, "malloc_trim", None)
    if set_option is None or give_back is None or any(name in os.environ for name in _USERS):
        yield
        return
    set_option(_MMAP_THRESHOLD, _LARGEST)
    set_option(_TRIM_THRESHOLD, _KEPT)
    try:
        yield
    finally:
        give_back(0)


_THRESHOLDS = (20_000, 20, 20)


@contextmanager
def calm_collector() -> Iterator[None]:
    """Exclude existing objects from garbage collection, and collect less often, until the exit."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
