"""Starts the stages of a run on one machine, watches them, and ends them together.

Stages are forked, so spaces, data and losses may be any Python objects and nothing is ever
pickled. The launcher computes nothing with torch itself before it forks.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgpack
import torch
import zmq

from naspipe.core.config import Execution
from naspipe.core.errors import ConfigError, StageFailedError, TransportError
from naspipe.core.ids import FIRST_STREAM, StageId
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.compute import Workload
from naspipe.runtime.cuda_device import start_cuda
from naspipe.runtime.determinism import deterministic_torch
from naspipe.runtime.garbage import calm_collector
from naspipe.runtime.profiler import profile
from naspipe.runtime.reports import LaunchObserver, read_report
from naspipe.runtime.stage_process import Job, StreamJob, run_alone, stage_main
from naspipe.runtime.transport import Endpoints, bind_inbox, ipc_endpoints, tcp_endpoints
from naspipe.trace.losses import LossWriter
from naspipe.trace.snapshot import write_checkpoint_manifest

_FORK = multiprocessing.get_context("fork")
_GRACE_SECONDS = 2.0
_POLL_MS = 1000
_PREFIX = "naspipe-"
"""Of the private directory that holds a run's sockets."""


class _Collector:
    """Takes the reports of all stages: writes losses, keeps results, raises the first failure."""

    def __init__(self, losses: Sequence[LossWriter], observer: LaunchObserver) -> None:
        self._losses = tuple(losses)
        self._observer = observer
        self.results: dict[int, dict[str, Any]] = {}

    def take(self, kind: str, stage: int, body: dict[str, Any]) -> None:
        """Handle one report.

        Raises:
            StageFailedError: when a stage reports that it failed.
            ConfigError: when what it failed on is the user's input.
        """
        match kind:
            case "loss":
                stream, sequence_id, loss = body["stream"], body["sequence_id"], body["loss"]
                self._losses[stream].append(FIRST_STREAM, sequence_id, loss, body["bits"])
                self._observer.on_loss(stream, sequence_id, loss)
            case "busy":
                self._observer.on_busy(stage, body["busy_ns"], body["elapsed_ns"])
            case "failed" if body.get("is_input"):
                raise ConfigError(body["message"])
            case "failed":
                raise StageFailedError(stage, body["task"], body["traceback"])
            case "done":
                self.results[stage] = body

    def report(self, kind: str, body: Any) -> None:
        """Reports of a run on one stage, which come without a socket."""
        self.take(kind, 0, dict(body))


def launch(job: Job, observer: LaunchObserver) -> list[dict[str, Any]]:
    """Carry a run out on this machine, to its final checkpoint.

    Returns what each stage measured of itself: bytes handed over and copied.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: when a stage finds that the input cannot be used, or a port is in use.
    """
    with ExitStack() as stack:
        paths = [stream.directory.losses for stream in job.streams]
        losses = [stack.enter_context(LossWriter(path)) for path in paths]
        collector = _Collector(losses, observer)
        if job.execution.stages == 1 and job.execution.device == "cpu":
            run_alone(job, collector)
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
            _run_stages(job, make_endpoints(job.execution, directory), collector)
    results = [collector.results[stage] for stage in sorted(collector.results)]
    for number, stream in enumerate(job.streams):
        _write_final(stream, [result["streams"][number] for result in results])
    return [result["measured"] for result in results]


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
    with receiver, _quiet_fork():
        process.start()
        sender.close()
        try:
            if not receiver.poll(timeout_seconds):
                raise TransportError(f"the profile took longer than {timeout_seconds:g} s")
            costs, failure, refusal = msgpack.unpackb(receiver.recv_bytes())
        except EOFError:
            raise StageFailedError(0, "the profile of its layers", _obituary(process)) from None
        finally:
            _end([process])
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
def _quiet_fork() -> Iterator[None]:
    """Fork without Python 3.12's warning about threads.

    torch and numpy keep idle pools, which a stage, computing on its own thread, never touches.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def check_endpoints(execution: Execution) -> None:
    """Look whether the stages could have their addresses; takes none of them.

    Raises:
        ConfigError: when a port is in use, or the temporary directory's path is too long.
    """
    if execution.stages > 1 or execution.device != "cpu":
        make_endpoints(execution, Path(tempfile.gettempdir()) / f"{_PREFIX}{8 * 'x'}")


def make_endpoints(execution: Execution, directory: Path) -> Endpoints:
    """Addresses for a run's stages and its launcher."""
    if execution.transport == "tcp":
        made = tcp_endpoints(execution.port, execution.stages)
    else:
        made = ipc_endpoints(directory, execution.stages)
    return replace(made, directory=directory)


def _run_stages(job: Job, endpoints: Endpoints, collector: _Collector) -> None:
    _check_fit_for_forking(job.execution.device)
    num_stages = job.execution.stages
    with _stage_processes(job, endpoints) as processes, zmq.Context() as context:
        inbox = bind_inbox(context, endpoints.launcher, endpoints)
        try:
            _supervise(inbox, processes, collector, job.execution.timeout_seconds)
        finally:
            inbox.close(0)
        for process in processes:
            process.join(_GRACE_SECONDS + 10)
    if len(collector.results) != num_stages:
        raise TransportError(f"only {len(collector.results)} of {num_stages} stages reported")


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


def _supervise(
    inbox: zmq.Socket[Any],
    processes: list[BaseProcess],
    collector: _Collector,
    timeout_seconds: float,
) -> None:
    """Take reports until every stage is done or one has failed."""
    poller = zmq.Poller()
    poller.register(inbox, zmq.POLLIN)
    for process in processes:
        poller.register(process.sentinel, zmq.POLLIN)
    # Stages give up after the time-out and name what they waited for; leave them time to say so.
    deadline = time.monotonic() + timeout_seconds + 30
    while len(collector.results) < len(processes):
        ready = dict(poller.poll(_POLL_MS))
        if inbox in ready:
            while inbox.poll(0):
                collector.take(*read_report(inbox.recv()))
            deadline = time.monotonic() + timeout_seconds + 30
            continue
        for stage, process in enumerate(processes):
            if process.sentinel in ready:
                poller.unregister(process.sentinel)
                if stage not in collector.results and not inbox.poll(500):
                    raise StageFailedError(stage, "an unknown task", _obituary(process))
        if time.monotonic() > deadline:
            raise TransportError(f"no stage has reported for {timeout_seconds + 30:g} s")


def _obituary(process: BaseProcess) -> str:
    process.join(1)
    code = process.exitcode
    if code is not None and code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process ended with exit status {code} and no report"


@contextmanager
def _stage_processes(job: Job, endpoints: Endpoints) -> Iterator[list[BaseProcess]]:
    """The stages' processes; none is left when the block ends, however it ends."""
    lifeline = os.pipe()
    processes: list[BaseProcess] = []
    process: BaseProcess
    try:
        with _quiet_fork():
            for number in range(job.execution.stages):
                process = _FORK.Process(
                    target=stage_main,
                    args=(job, StageId(number), endpoints, lifeline),
                    name=f"naspipe-stage-{number}",
                )
                process.start()
                processes.append(process)
        os.close(lifeline[0])
        yield processes
    finally:
        _end(processes)
        os.close(lifeline[1])


def _end(processes: Sequence[BaseProcess]) -> None:
    """Leave none of these processes behind."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _write_final(stream: StreamJob, shards: Sequence[dict[str, Any]]) -> None:
    write_checkpoint_manifest(
        stream.directory.checkpoint("final"),
        {
            "format": 1,
            "subnets": len(stream.subnets),
            "shards": [shard["shard"] for shard in shards],
            "versions": {k: v for shard in shards for k, v in shard["versions"].items()},
            "scalars": {k: v for shard in shards for k, v in shard["scalars"].items()},
        },
    )
