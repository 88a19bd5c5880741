"""One stage from start to end: build it, run it, write what it leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from naspipe.core.access import Access
from naspipe.core.config import Execution, parse_bytes
from naspipe.core.errors import ConfigError
from naspipe.core.events import Event, Priorities
from naspipe.core.ids import SequenceId, StageId, StreamId
from naspipe.core.partition import Partition
from naspipe.core.ports import Residency
from naspipe.core.subnet import Subnet
from naspipe.planning.memory import MemoryPlan
from naspipe.residency.manager import ResidencyManager
from naspipe.runtime.checkpoint import snapshot
from naspipe.runtime.compute import StageCompute, Workload
from naspipe.runtime.determinism import deterministic_torch
from naspipe.runtime.device import open_device
from naspipe.runtime.driver import StageDriver
from naspipe.runtime.garbage import calm_collector
from naspipe.runtime.placement import Placement, SwappedPlacement, device_name
from naspipe.runtime.reports import Reporter, ZmqReporter
from naspipe.runtime.transport import Endpoints, NoTransport, Transport, ZmqTransport
from naspipe.runtime.wakeup import Wakeup
from naspipe.stage.admission import AdmissionWindow
from naspipe.stage.builder import build_controller
from naspipe.trace.event_log import EventLogWriter
from naspipe.trace.log import AccessLogWriter
from naspipe.trace.run_directory import RunDirectory
from naspipe.trace.snapshot import write_checkpoint

_REPORT_EVERY_NS = 250_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, as every stage needs to know it."""

    workload: Workload
    execution: Execution
    subnets: tuple[Subnet, ...]
    partitions: tuple[Partition, ...]
    """Of every subnet."""
    priorities: tuple[Priorities, ...] | None = None
    """Of every subnet, where the dispatch order asks for them."""
    memory: MemoryPlan | None = None
    """What layers may occupy on each stage's device; None for no limit."""
    directory: RunDirectory

    def admitted(self, sequence_id: int) -> tuple[Subnet, Partition, Priorities | None]:
        """What every stage is told of a subnet when it is admitted."""
        priorities = self.priorities[sequence_id] if self.priorities else None
        return self.subnets[sequence_id], self.partitions[sequence_id], priorities


class _Sink:
    """Files of one stage, and reports to the launcher."""

    def __init__(
        self, log: AccessLogWriter, events: EventLogWriter | None, reporter: Reporter
    ) -> None:
        self._log = log
        self._events = events
        self._reporter = reporter
        self._start_ns = self._reported_ns = time.monotonic_ns()
        self._busy_ns = 0

    def access(self, access: Access) -> None:
        """See :class:`naspipe.runtime.driver.StageSink`."""
        self._log.append(access)
        self._busy_ns += access.end_ns - access.start_ns
        if access.end_ns - self._reported_ns > _REPORT_EVERY_NS:
            self._reported_ns = access.end_ns
            elapsed_ns = access.end_ns - self._start_ns
            self._reporter.report("busy", {"busy_ns": self._busy_ns, "elapsed_ns": elapsed_ns})

    def loss(self, stream: StreamId, sequence_id: SequenceId, loss: torch.Tensor) -> None:
        """See :class:`naspipe.runtime.driver.StageSink`."""
        raw = loss.reshape(1).view(torch.uint8).numpy().tobytes()[::-1]
        body = {
            "stream": stream,
            "sequence_id": sequence_id,
            "loss": float(loss),
            "bits": raw.hex(),
        }
        self._reporter.report("loss", body)

    def event(self, event: Event) -> None:
        """See :class:`naspipe.runtime.driver.StageSink`."""
        if self._events is not None:
            self._events.append(event)


class StageRun:
    """A stage of a job, ready to run."""

    def __init__(
        self,
        job: Job,
        stage: StageId,
        transport: Transport,
        reporter: Reporter,
        placement: Placement,
    ) -> None:
        self._job = job
        self._stage = stage
        self._transport = transport
        self._reporter = reporter
        self._placement = placement
        self._driver: StageDriver | None = None

    @property
    def current(self) -> str:
        """What the stage is doing, for the report of a failure."""
        return self._driver.current if self._driver else "start"

    def run(self) -> None:
        """Train this stage's part of every subnet, then write its layers and report."""
        job, stage = self._job, self._stage
        log_path = job.directory.access_log(stage)
        events_path = job.directory.events_log(stage)
        with AccessLogWriter(log_path) as log:
            if not job.execution.record_events:
                self._train(_Sink(log, None, self._reporter))
            else:
                with EventLogWriter(events_path) as events:
                    self._train(_Sink(log, events, self._reporter))

    def _train(self, sink: _Sink) -> None:
        job, stage = self._job, self._stage
        definition, execution = job.workload.definition, job.execution
        compute = StageCompute(job.workload, self._placement)
        controller = build_controller(
            stage,
            job.workload.space.rules,
            policy=definition.policy,
            order=execution.order,
            residency=residency_of(job.memory, stage, execution),
            starts_partly_clear=execution.partly_clear,
        )
        self._driver = StageDriver(
            stage,
            controller,
            compute,
            self._transport,
            AdmissionWindow(execution.window, len(job.subnets)),
            job.admitted,
            sink,
            timeout_seconds=execution.timeout_seconds,
            digests=execution.digests,
        )
        with deterministic_torch(definition.recipe.threads), calm_collector():
            self._driver.run()
        self._driver.finishing()
        measured = {"pushed_bytes": self._driver.pushed_bytes, **self._placement.measured()}
        self._reporter.report("done", {**self._save(compute), "measured": measured})

    def _save(self, compute: StageCompute) -> dict[str, Any]:
        tensors, scalars, versions = snapshot(self._job.workload.space, compute.store.items())
        shard = write_checkpoint(
            self._job.directory.checkpoint("final"), f"stage-{self._stage}.safetensors", tensors
        )
        return {"shard": shard, "scalars": scalars, "versions": versions}


def residency_of(
    memory: MemoryPlan | None, stage: StageId, execution: Execution
) -> Residency | None:
    """Who decides what is on a stage's device; None where everything is."""
    if memory is None:
        return None
    return ResidencyManager(
        memory.budgets[stage],
        memory.sizes,
        memory.permanent_blocks,
        prefetches=execution.prefetch,
    )


def _placement(job: Job, stage: StageId, wakeup: Wakeup) -> Placement:
    """Where the stage's layers and tensors live. Starts CUDA, where that is the device."""
    execution = job.execution
    name = device_name(execution.device, stage)
    if job.memory is None:
        return Placement(torch.device(name))
    device = open_device(name, job.memory.budgets[stage], execution.bandwidth, execution.latency)
    limit_bytes = parse_bytes(execution.host_memory) or None
    return SwappedPlacement(device, job.workload.definition.recipe, limit_bytes, wakeup)


def run_alone(job: Job, reporter: Reporter) -> None:
    """The run on one stage, in this process and without sockets."""
    _run_stage(job, StageId(0), NoTransport, reporter)


def _run_stage(
    job: Job, stage: StageId, connect: Callable[[Wakeup], Transport], reporter: Reporter
) -> None:
    """Run one stage to its end; a failure is reported, never raised."""
    task = "start"
    try:
        with ExitStack() as stack:
            wakeup = stack.enter_context(Wakeup())
            transport = stack.enter_context(connect(wakeup))
            placement = stack.enter_context(_placement(job, stage, wakeup))
            stage_run = StageRun(job, stage, transport, reporter, placement)
            try:
                stage_run.run()
            finally:
                task = stage_run.current
    except Exception as error:
        reporter.report("failed", _failure(task, error))


def _failure(task: str, error: Exception) -> dict[str, Any]:
    """The report of a failure: what was under way, and why it ended."""
    return {
        "task": task,
        "traceback": "".join(traceback.format_exception(error)),
        "message": str(error),
        "is_input": isinstance(error, ConfigError),
    }


def stage_main(job: Job, stage: StageId, endpoints: Endpoints, lifeline: tuple[int, int]) -> None:
    """The body of a stage's process: ends with the run, its own failure, or the launcher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    read_end, write_end = lifeline
    os.close(write_end)
    threading.Thread(target=_end_with_launcher, args=(read_end,), daemon=True).start()
    with ZmqReporter(stage, endpoints) as reporter:
        _run_stage(job, stage, partial(ZmqTransport, stage, endpoints), reporter)


def _end_with_launcher(read_end: int) -> None:
    """Wait for the end of a pipe that only the launcher holds open."""
    os.read(read_end, 1)
    os._exit(1)
