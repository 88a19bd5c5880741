"""Starts the stages of a run on one machine, watches them, and ends them together.

Stages are forked, so spaces, data and losses may be any Python objects and nothing is ever
pickled. The launcher computes nothing with torch itself before it forks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgpack
import torch
import zmq

from naspipe.core.errors import ConfigError, RunInterruptedError, StageFailedError, TransportError
from naspipe.core.ids import StageId
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.claim import SOCKETS_PREFIX, record_processes
from naspipe.runtime.compute import Workload
from naspipe.runtime.cuda_device import start_cuda
from naspipe.runtime.determinism import deterministic_torch
from naspipe.runtime.doorkeeper import Doorkeeper
from naspipe.runtime.endpoints import Endpoints, make_endpoints
from naspipe.runtime.exploring import Exploring
from naspipe.runtime.garbage import calm_collector
from naspipe.runtime.hosts import JOB, Announcer, Hosts, Party
from naspipe.runtime.job import Job, PipelineJob
from naspipe.runtime.liveness import Liveness
from naspipe.runtime.messages import LauncherMessage, launcher_frames
from naspipe.runtime.profiler import profile
from naspipe.runtime.publishing import Publisher, merge_parts
from naspipe.runtime.reports import LaunchObserver
from naspipe.runtime.stage_main import run_alone, stage_main
from naspipe.runtime.stage_process import StageRun, StageWork
from naspipe.runtime.stopping import Stop, answered_signals
from naspipe.runtime.supervisor import Collector, ReportTaker, obituary, supervise
from naspipe.runtime.transport import bind_inbox, connect_outbox
from naspipe.runtime.wakeup import Wakeup
from naspipe.trace.checkpoints import FINAL
from naspipe.trace.losses import LossWriter

_FORK = multiprocessing.get_context("fork")
_GRACE_SECONDS = 2.0


def launch(job: Job, observer: LaunchObserver, party: Party | None = None) -> list[dict[str, Any]]:
    """Carry a run out, to its final checkpoint; on several hosts, with stage 0 on this one.

    Returns what each stage measured of itself: bytes handed over and copied.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: when a stage finds that the input cannot be used, or a port is in use.
        StorageError: when a file cannot be written.
        RunInterruptedError: after SIGINT or SIGTERM, behind a checkpoint.
    """
    execution, num_stages = job.execution, job.execution.stages
    folders = [stream.directory.checkpoints for stream in job.streams]
    mailboxes = Mailboxes()
    stop = Stop(num_stages, mailboxes.send)
    with ExitStack() as stack:
        wakeup = stack.enter_context(Wakeup())
        losses = [
            stack.enter_context(LossWriter(stream.directory.losses, stream.first))
            for stream in job.streams
        ]
        publisher = Publisher(
            num_stages, job.generation, folders, losses, execution.keep_checkpoints
        )
        exploring = stack.enter_context(Exploring(job, mailboxes.send))
        collector = Collector(num_stages, losses, observer, publisher, stop, exploring)
        if job.is_causal:
            stack.enter_context(answered_signals(lambda number: _ask(stop, wakeup, number)))
        if num_stages == 1 and execution.device == "cpu":
            exploring.start()
            run_alone(job, collector, mailboxes.local)
        else:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix=SOCKETS_PREFIX))
            )
            endpoints = party.hosts.endpoints if party else make_endpoints(execution, directory)
            run_stages(
                job, StageRun, endpoints, collector, exploring.start, stop, wakeup, mailboxes,
                party and party.hosts, party and party.assign(job),
            )  # fmt: skip
        results = [collector.results[stage] for stage in sorted(collector.results)]
        if not results[0]["streams"]:
            raise _interruption(job, stop, publisher)
        for number, stream in enumerate(job.streams):
            manifest = merge_parts(stream.steps, [result["streams"][number] for result in results])
            folders[number].publish(FINAL, job.generation, manifest)
    return [result["measured"] for result in results]


def _ask(stop: Stop, wakeup: Wakeup, signal_number: int) -> None:
    stop.request(signal_number)
    wakeup.set()


def _interruption(job: Job, stop: Stop, publisher: Publisher) -> RunInterruptedError:
    """What to say of a run that was asked to end and has done so."""
    cuts = [publisher.newest.get(number, each.first) for number, each in enumerate(job.streams)]
    path = job.streams[0].directory.path
    where = path if len(job.streams) == 1 else path.parent
    return RunInterruptedError(
        stop.signal_number,
        f"interrupted by {signal.Signals(stop.signal_number).name}, with a checkpoint at subnet "
        f"{' and '.join(map(str, cuts))}; go on with: naspipe train --resume {where}",
    )


class Mailboxes:
    """The way from the launcher to its stages; a stage in this process has a queue."""

    def __init__(self) -> None:
        self.local: deque[LauncherMessage] = deque()
        self.outboxes: list[zmq.Socket[Any]] = []

    def send(self, stage: int, message: LauncherMessage) -> None:
        """Hand a message to a stage."""
        if self.outboxes:
            self.outboxes[stage].send_multipart(launcher_frames(message))
        else:
            self.local.append(message)


def profile_apart(workload: Workload, timeout_seconds: float, device: str = "cpu") -> CostTable:
    """The quick profile, in a process of its own, so that this one stays fit for forking.

    Raises:
        StageFailedError: when a layer, the loss or the data raises.
        ConfigError: when one of them is not what it should be.
        TransportError: when the profile takes longer than the time-out.
    """
    _check_fit_for_forking(device)
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(
        target=_profile_main, args=(workload, device, sender), name="naspipe-profile"
    )
    with receiver, quiet_fork():
        process.start()
        sender.close()
        try:
            if not receiver.poll(timeout_seconds):
                raise TransportError(f"the profile took longer than {timeout_seconds:g} s")
            costs, failure, refusal = msgpack.unpackb(receiver.recv_bytes())
        except EOFError:
            raise StageFailedError(0, "the profile of its layers", obituary(process)) from None
        finally:
            end_all([process])
    if refusal:
        raise ConfigError(refusal)
    if failure:
        raise StageFailedError(0, "the profile of its layers", failure)
    return CostTable({(block, candidate): LayerCost(*cost) for block, candidate, cost in costs})


def _profile_main(workload: Workload, device: str, sender: Any) -> None:
    costs: list[Any] = []
    failure = refusal = ""
    try:
        with deterministic_torch(workload.definition.recipe.threads), calm_collector():
            if device != "cpu":
                start_cuda(torch.device(device))
            table = profile(workload, device=device)
        costs = [[*key, list(cost)] for key, cost in table.costs.items()]
    except ConfigError as error:
        refusal = str(error)
    except Exception:
        failure = traceback.format_exc()
    sender.send_bytes(msgpack.packb([costs, failure, refusal]))


@contextmanager
def quiet_fork() -> Iterator[None]:
    """Fork without Python 3.12's warning about threads.

    torch and numpy keep idle pools, which a stage, computing on its own thread, never touches.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def run_stages(
    job: PipelineJob,
    make: Callable[..., StageWork],
    endpoints: Endpoints,
    collector: ReportTaker,
    start: Callable[[], None],
    stop: Stop,
    wakeup: Wakeup,
    mailboxes: Mailboxes,
    hosts: Hosts | None = None,
    assigned: Mapping[str, Any] | None = None,
) -> None:
    """Run the stages in processes of their own until all are done.

    Args:
        job: what they do.
        make: makes a stage's work, as ``StageRun`` is made.
        endpoints: of the stages and this process.
        collector: takes their reports.
        start: called when messages can be sent to them.
        stop: of a wish to end.
        wakeup: set with it.
        mailboxes: the way to them.
        hosts: where all but stage 0 are, on several hosts.
        assigned: what their workers need to make the job.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError, StorageError: what a stage found.
    """
    execution = job.execution
    _check_fit_for_forking(execution.device)
    here = range(1 if hosts else execution.stages)
    with _stage_processes(job, make, endpoints, here) as processes, ExitStack() as stack:
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        stack.enter_context(Doorkeeper(context, endpoints.public_keys.values()))
        inbox = bind_inbox(context, endpoints.launcher, endpoints)
        collector.liveness = Liveness(
            range(execution.stages),
            time.monotonic(),
            execution.silence_seconds,
            execution.timeout_seconds,
        )
        mailboxes.outboxes += [
            connect_outbox(context, address, endpoints) for address in endpoints.stages
        ]
        announcer = Announcer(context, hosts)
        if hosts:
            announcer.tell(JOB, assigned)
        start()
        supervise(inbox, processes, collector, stop, wakeup, announcer.beat)
        stack.close()
        for process in processes.values():
            process.join(_GRACE_SECONDS + 10)


def _check_fit_for_forking(device: str) -> None:
    """CUDA does not survive a fork, so only stages may start it.

    Raises:
        ConfigError: when this process has started it.
    """
    if device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            "this process has used CUDA already, so stages cannot be forked from it; "
            "start training before the first CUDA call, or use the naspipe command"
        )


@contextmanager
def _stage_processes(
    job: PipelineJob,
    make: Callable[..., StageWork],
    endpoints: Endpoints,
    stages: Iterable[int],
) -> Iterator[dict[int, BaseProcess]]:
    """The stages' processes; none is left when the block ends, however it ends."""
    lifeline = os.pipe()
    processes: dict[int, BaseProcess] = {}
    process: BaseProcess
    try:
        with quiet_fork():
            for number in stages:
                process = _FORK.Process(
                    target=stage_main,
                    args=(lambda: job, StageId(number), endpoints, lifeline),
                    kwargs={"make": make},
                    name=f"naspipe-stage-{number}",
                )
                process.start()
                processes[number] = process
        pids = [each.pid for each in processes.values() if each.pid is not None]
        for directory in job.claimed:
            record_processes(directory, pids, endpoints.directory)
        os.close(lifeline[0])
        yield processes
    finally:
        end_all(processes.values())
        os.close(lifeline[1])


def end_all(processes: Collection[BaseProcess]) -> None:
    """Leave none of these processes behind: what they wrote can bear it."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
        process.close()
