"""The main function of a stage's process.

A stage sets up torch, its transport and its placement, runs, and reports a failure to the launcher.
A stage in a process of its own also ends when its parent does.
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
    """Run a job of one stage in this process, without sockets and never on a GPU."""
    _run_stage(job, WorkerId(0), partial(NoTransport, mailbox), reporter, make)


def _run_stage(
    job: PipelineJob,
    worker: WorkerId,
    connect: Callable[[Wakeup], Transport],
    reporter: Reporter,
    make: Callable[..., StageWork],
) -> None:
    """Run one stage to its end. A failure is reported and never raised."""
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
    """Return a report of a failure: the current task, the error, and the kind of error."""
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
    """Run a stage in its own process until the run ends, the stage fails, or its parent ends.

    Args:
        make_job: called in this process; an error that it raises is a failure of the stage.
        worker: the ID of this worker.
        endpoints: the addresses of the run.
        lifeline: a pipe that the parent holds open.
        make: creates the stage's work, as ``StageRun`` does.
        launcher_is_elsewhere: whether the parent is not the launcher, so that the end of the
            parent must be reported to the launcher.
    """
    # The launcher handles signals: it takes a checkpoint, for which the stages must stay alive.
    leave_signals_to_launcher()
    read_end, write_end = lifeline
    os.close(write_end)
    _wake_with_parents_end()

    def end_with_parent() -> None:
        os.read(read_end, 1)  # returns when the parent, the only holder of the other end, has ended
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
    """Make the kernel resume this process when its parent ends, in case it was stopped."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGCONT))
