"""Starts, supervises and ends the processes of a pipeline's stages together."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import zmq

from naspipe.config.ids import WorkerId
from naspipe.jobs.ports import PipelineJob
from naspipe.launch.claim import record_processes
from naspipe.launch.hosts import JOB, Announcer, Hosts
from naspipe.launch.liveness import Liveness
from naspipe.launch.stopping import Stop
from naspipe.launch.supervisor import StageReports, supervise
from naspipe.machine.forking import FORK, check_fit_for_forking, end_all, quiet_fork
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.messages import LauncherMessage, launcher_frames
from naspipe.wire.transport import Authenticator, Wakeup, bind_inbox, connect_outbox
from naspipe.worker.stage_files import StageWork
from naspipe.worker.stage_main import stage_main

_GRACE_SECONDS = 2.0


class Mailboxes:
    """Sends messages from the launcher to its stages; a stage in this process uses a queue."""

    def __init__(self) -> None:
        self.local: deque[LauncherMessage] = deque()
        self.outboxes: list[zmq.Socket[Any]] = []

    def send(self, stage: int, message: LauncherMessage) -> None:
        if self.outboxes:
            self.outboxes[stage].send_multipart(launcher_frames(message))
        else:
            self.local.append(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSide:
    """The parts of the launcher that take part in the work of its stages."""

    collector: StageReports
    start: Callable[[], None]
    """Called as soon as messages can be sent to the stages."""
    stop: Stop
    wakeup: Wakeup
    """Set when the end of the run is requested."""
    mailboxes: Mailboxes


def run_stages(
    job: PipelineJob,
    make: Callable[..., StageWork],
    endpoints: Endpoints,
    side: LauncherSide,
    hosts: Hosts | None = None,
    assigned: Mapping[str, Any] | None = None,
) -> None:
    """Run the stages in separate processes until all are done.

    Args:
        job: the job of the stages.
        make: creates a stage's work, as ``StageRun`` does.
        endpoints: the addresses of the stages and this process.
        side: the launcher's parts in this process.
        hosts: the hosts of all stages, if there are several.
        assigned: the data that the workers on other hosts need to create the job.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError, StorageError: reported by a stage.
    """
    execution = job.execution
    check_fit_for_forking(execution.hardware.device)
    here = range(1 if hosts else execution.workers)
    with _stage_processes(job, make, endpoints, here) as processes, ExitStack() as stack:
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        stack.enter_context(Authenticator(context, endpoints.public_keys.values()))
        inbox = bind_inbox(context, endpoints.launcher, endpoints)
        side.collector.liveness = Liveness(
            range(execution.workers),
            time.monotonic(),
            execution.watch.silence_seconds,
            execution.watch.timeout_seconds,
            hosts.places if hosts else (),
        )
        side.mailboxes.outboxes += [
            connect_outbox(context, address, endpoints) for address in endpoints.workers
        ]
        announcer = Announcer(context, hosts)
        if hosts:
            announcer.tell(JOB, assigned)
        side.start()
        supervise(inbox, processes, side.collector, side.stop, side.wakeup, announcer.beat)
        stack.close()
        for process in processes.values():
            process.join(_GRACE_SECONDS + 10)


@contextmanager
def _stage_processes(
    job: PipelineJob,
    make: Callable[..., StageWork],
    endpoints: Endpoints,
    stages: Iterable[int],
) -> Iterator[dict[int, BaseProcess]]:
    """Start the processes of the stages. None is left when the context exits, however it exits."""
    parent_pipe = os.pipe()
    processes: dict[int, BaseProcess] = {}
    process: BaseProcess
    try:
        with quiet_fork():
            for number in stages:
                process = FORK.Process(
                    target=stage_main,
                    args=(lambda: job, WorkerId(number), endpoints, parent_pipe),
                    kwargs={"make": make},
                    name=f"naspipe-stage-{number}",
                )
                process.start()
                processes[number] = process
        pids = [each.pid for each in processes.values() if each.pid is not None]
        for directory in job.claimed:
            record_processes(directory, pids, endpoints.directory)
        os.close(parent_pipe[0])
        yield processes
    finally:
        end_all(processes.values())
        os.close(parent_pipe[1])
