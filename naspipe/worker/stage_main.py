"""The body of a stage's process, from its start to its end.

A stage sets up torch, its transport and its placement, runs, and reports how it failed if it did. A
stage in a process of its own also ends when its parent does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from naspipe.config.errors import (
    ConfigError,
    NotFiniteError,
    StorageError,
    VerificationError,
    reason,
)
from naspipe.config.ids import WorkerId
from naspipe.config.user_code import users_traceback
from naspipe.jobs.ports import PipelineJob
from naspipe.machine import device_waits
from naspipe.machine import out_of_memory as shortages
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import in_own_thread, leave_signals_to_launcher
from naspipe.store.files import STORAGE, cannot_write
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.messages import LauncherMessage
from naspipe.wire.ports import Reporter, Transport
from naspipe.wire.reports import WAITING, ZmqReporter
from naspipe.wire.transport import NoTransport, Wakeup
from naspipe.worker.stage_files import StageWork
from naspipe.worker.stage_process import StageRun, StageSeat, connect, open_placement


def run_alone(
    job: PipelineJob,
    reporter: Reporter,
    mailbox: deque[LauncherMessage],
    make: Callable[..., StageWork] = StageRun,
) -> None:
    """Run a job of one stage in this process, without sockets; never on a GPU."""
    _run_stage(job, WorkerId(0), partial(NoTransport, mailbox), reporter, make)


def _run_stage(
    job: PipelineJob,
    worker: WorkerId,
    connect: Callable[[Wakeup], Transport],
    reporter: Reporter,
    make: Callable[..., StageWork],
) -> None:
    """Run one stage to its end; a failure is reported, never raised."""
    task = "start"
    device_waits.begin()
    try:
        with ExitStack() as stack:
            # Before the device starts: cuBLAS reads its settings once.
            stack.enter_context(deterministic_torch(job.threads))
            wakeup = stack.enter_context(Wakeup())
            transport = stack.enter_context(connect(wakeup))
            stage = job.positions.stage(worker)
            placement = stack.enter_context(open_placement(job, worker))
            shortages.note()
            stage_run = make(job, StageSeat(stage, transport, reporter, placement, wakeup))
            reporter.watch(lambda: stage_run.current)
            try:
                stage_run.run()
            finally:
                task = stage_run.current
    except Exception as error:
        reporter.report("failed", failure_report(task, error))


def failure_report(task: str, error: Exception) -> dict[str, Any]:
    """Describe a failure: what was under way, why it ended, and whose failure it is."""
    message, kind = str(error), ""
    if isinstance(error, OSError):
        message = (
            str(cannot_write(Path(error.filename), error)) if error.filename else reason(error)
        )
    if isinstance(error, ConfigError):
        kind = "input"
    elif isinstance(error, NotFiniteError):
        kind = "number"
    elif isinstance(error, VerificationError):
        kind = "bits"
    elif isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno in STORAGE):
        kind = "storage"
    return {
        "task": task,
        "traceback": users_traceback(error),
        "message": message,
        "kind": kind,
        "cause": reason(error),
        "host": os.uname().nodename,
    }


def stage_main(
    make_job: Callable[[], PipelineJob],
    worker: WorkerId,
    endpoints: Endpoints,
    lifeline: tuple[int, int],
    *,
    make: Callable[..., StageWork] = StageRun,
    launcher_is_elsewhere: bool = False,
) -> None:
    """The body of a stage's process, which ends with the run, its own failure, or its parent.

    Args:
        make_job: called here; an error that it raises is the stage's failure.
        worker: which worker this is.
        endpoints: of the run.
        lifeline: a pipe that the parent holds open.
        make: makes the stage's work, like ``StageRun``.
        launcher_is_elsewhere: the parent is not the launcher, so the launcher has to be told of
            the parent's end.
    """
    # The launcher answers signals for all: with a checkpoint, for which it needs its stages.
    leave_signals_to_launcher()
    read_end, write_end = lifeline
    os.close(write_end)
    _wake_with_parents_end()

    def end_with_parent() -> None:
        os.read(read_end, 1)  # returns when the parent, which alone holds it open, has ended
        if launcher_is_elsewhere:
            with ZmqReporter(worker, endpoints) as reporter:
                how = "the worker that watched it has ended"
                reporter.report("died", {"how": how, "host": os.uname().nodename})
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with ZmqReporter(worker, endpoints) as reporter:
        reporter.watch(lambda: WAITING)
        try:
            job = make_job()
        except Exception as error:
            reporter.report("failed", failure_report("its preparation", error))
            return
        transport = partial(connect, job, worker, endpoints)
        in_own_thread(job.threads, lambda: _run_stage(job, worker, transport, reporter, make))


def _wake_with_parents_end() -> None:
    """Have the kernel continue this process when its parent ends, even if it was stopped."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGCONT))
