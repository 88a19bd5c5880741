"""Starts the stages of a run on one machine, watches them, and ends them together.

Stages are forked, so spaces, data and losses may be any Python objects and nothing is ever
pickled. The launcher computes nothing with torch itself before it forks.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import torch

from naspipe.core.errors import ConfigError, RunInterruptedError, StageFailedError, TransportError
from naspipe.planning.cost import CostTable, LayerCost, mean_costs
from naspipe.runtime.devices.cuda_device import start_cuda
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.devices.own_thread import in_own_thread
from naspipe.runtime.jobs.job import TrainingJob
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.measuring.profiler import profile
from naspipe.runtime.processes.growing_streams import GrowingStreams
from naspipe.runtime.processes.hosts import OtherHosts
from naspipe.runtime.processes.publishing import Publisher, merge_parts
from naspipe.runtime.processes.stage_pool import (
    FORK,
    Elsewhere,
    LauncherSide,
    Mailboxes,
    check_fit_for_forking,
    end_all,
    quiet_fork,
    run_stages,
)
from naspipe.runtime.processes.stopping import Stop, answered_signals
from naspipe.runtime.processes.supervisor import Collector, obituary
from naspipe.runtime.processes.validation_launcher import ValidationLauncher
from naspipe.runtime.wire.endpoints import SOCKETS_PREFIX, make_endpoints
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.runtime.wire.wakeup import Wakeup
from naspipe.runtime.worker.garbage import calm_collector
from naspipe.runtime.worker.stage_main import run_alone
from naspipe.runtime.worker.stage_process import StageRun
from naspipe.trace.results.losses_file import SectionLosses
from naspipe.trace.snapshots.checkpoints import FINAL


def launch(
    job: TrainingJob, observer: LaunchObserver, others: OtherHosts | None = None
) -> list[dict[str, Any]]:
    """Carry a run out, to its final checkpoint; on several hosts, with stage 0 on this one.

    Returns what each stage measured of itself: bytes handed over and copied.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: when a stage finds that the input cannot be used, or a port is in use.
        StorageError: when a file cannot be written.
        RunInterruptedError: after SIGINT or SIGTERM, behind a checkpoint.
    """
    execution, num_stages = job.execution, job.execution.workers
    folders = [stream.directory.checkpoints for stream in job.streams]
    mailboxes = Mailboxes()
    stop = Stop(num_stages, mailboxes.send, job.wiring.joined(len(job.streams)))
    with ExitStack() as stack:
        wakeup = stack.enter_context(Wakeup())
        losses = [
            stack.enter_context(
                SectionLosses(stream.loss_files, stream.first, stream.workload.is_trained)
            )
            for stream in job.streams
        ]
        validating = stack.enter_context(ValidationLauncher(job, observer))
        publisher = Publisher(
            job.participants, job.generation, folders, losses, execution.checkpoints.keep,
            validating, job.going_on_together,
        )  # fmt: skip
        growing = stack.enter_context(GrowingStreams(job, mailboxes.send))
        collect = validating.collect
        collector = Collector(num_stages, losses, observer, publisher, stop, growing, collect)
        if job.is_causal:
            stack.enter_context(answered_signals(lambda number: _ask(stop, wakeup, number)))
        side = LauncherSide(
            collector=collector,
            start=growing.start,
            stop=stop,
            wakeup=wakeup,
            mailboxes=mailboxes,
        )
        _run(job, side, others, stack)
        results = [collector.results[stage] for stage in sorted(collector.results)]
        if not results[0]["streams"]:
            raise _interruption(job, stop, publisher)
        for number, stream in enumerate(job.streams):
            parts = [result["streams"][number] for result in results]
            manifest = merge_parts(stream.num_passes, parts)
            folders[number].publish(FINAL, job.generation, manifest)
        if not validating.finish(lambda: bool(stop.signal_number), wakeup):
            raise _interruption(job, stop, publisher)
    return [result["measured"] for result in results]


def _run(job: TrainingJob, side: LauncherSide, others: OtherHosts | None, stack: ExitStack) -> None:
    """Have the stages work to their end: a single one in this process, unless it has a GPU."""
    execution = job.execution
    if execution.workers == 1 and execution.hardware.device == "cpu":
        side.start()
        run_alone(job, side.collector, side.mailboxes.local)
        return
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=SOCKETS_PREFIX)))
    if others is None:
        run_stages(job, StageRun, make_endpoints(execution, directory), side)
        return
    elsewhere = Elsewhere(hosts=others.hosts, assigned=others.assign(job))
    run_stages(job, StageRun, others.hosts.endpoints, side, elsewhere)


def _ask(stop: Stop, wakeup: Wakeup, signal_number: int) -> None:
    stop.request(signal_number)
    wakeup.set()


def _interruption(job: TrainingJob, stop: Stop, publisher: Publisher) -> RunInterruptedError:
    """What to say of a run that was asked to end and has done so."""
    cuts = [
        publisher.newest.get(number, each.first)
        for number, each in enumerate(job.streams)
        if each.workload.is_trained
    ]
    where = os.path.commonpath(job.claimed)
    return RunInterruptedError(
        stop.signal_number,
        f"interrupted by {signal.Signals(stop.signal_number).name}, with a checkpoint at subnet "
        f"{' and '.join(map(str, cuts))}; go on with: naspipe train --resume {where}",
    )


def profile_apart(
    workload: Workload, timeout_seconds: float, device: str = "cpu", copies: int = 1
) -> CostTable:
    """The quick profile, in a process of its own, so that this one stays fit for forking.

    Processes that compute at once share caches and memory's bandwidth, and each of them is slower
    than one alone. So several copies of the profile measure what layers take side by side.

    Args:
        workload: whose layers are measured.
        timeout_seconds: for all of it.
        device: where they compute.
        copies: how many processes measure at once; the result is their mean.

    Raises:
        StageFailedError: when a layer, the loss or the data raises.
        ConfigError: when one of them is not what it should be.
        TransportError: when the profile takes longer than the time-out.
    """
    check_fit_for_forking(device)
    deadline = time.monotonic() + timeout_seconds
    with ExitStack() as stack, quiet_fork():
        started = [_start_profile(workload, device, stack) for _ in range(copies)]
        return mean_costs([_profile_of(*each, deadline) for each in started])


def _start_profile(workload: Workload, device: str, stack: ExitStack) -> tuple[Any, Any]:
    """A process that measures, and where its answer comes."""
    receiver, sender = FORK.Pipe(duplex=False)
    stack.enter_context(receiver)
    process = FORK.Process(
        target=_profile_main, args=(workload, device, sender), name="naspipe-profile"
    )
    process.start()
    stack.callback(end_all, [process])
    sender.close()
    return process, receiver


def _profile_of(process: Any, receiver: Any, deadline: float) -> CostTable:
    try:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            raise TransportError("the profile took longer than timeout_seconds allows")
        costs, failure, refusal = msgpack.unpackb(receiver.recv_bytes())
    except EOFError:
        raise StageFailedError(0, "the profile of its layers", obituary(process)) from None
    if refusal:
        raise ConfigError(refusal)
    if failure:
        raise StageFailedError(0, "the profile of its layers", failure)
    return CostTable({(block, candidate): LayerCost(*cost) for block, candidate, cost in costs})


def _profiled(workload: Workload, device: str, threads: int) -> CostTable:
    with deterministic_torch(threads), calm_collector():
        if device != "cpu":
            start_cuda(torch.device(device))
        return profile(workload, device=device)


def _profile_main(workload: Workload, device: str, sender: Any) -> None:
    costs: list[Any] = []
    failure = refusal = ""
    try:
        threads = workload.definition.recipe.threads
        table = in_own_thread(threads, lambda: _profiled(workload, device, threads))
        costs = [[*key, list(cost)] for key, cost in table.costs.items()]
    except ConfigError as error:
        refusal = str(error)
    except Exception:
        failure = traceback.format_exc()
    sender.send_bytes(msgpack.packb([costs, failure, refusal]))
