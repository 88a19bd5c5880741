"""One stage from start to end: build it, run it, write what it leaves."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from naspipe.core.config import Execution, parse_bytes
from naspipe.core.errors import ConfigError
from naspipe.core.events import Priorities
from naspipe.core.ids import StageId, StreamId
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.planning.memory import MemoryPlan
from naspipe.runtime.checkpoint import snapshot
from naspipe.runtime.compute import StageCompute, Workload
from naspipe.runtime.connections import connect, start_device
from naspipe.runtime.cuda_device import measured_memory
from naspipe.runtime.determinism import deterministic_torch
from naspipe.runtime.device import open_device
from naspipe.runtime.driver import StageDriver
from naspipe.runtime.garbage import calm_collector
from naspipe.runtime.layer_store import LayerStore
from naspipe.runtime.out_of_memory import LayerUse
from naspipe.runtime.placement import Placement, SwappedPlacement
from naspipe.runtime.reports import Reporter, ZmqReporter
from naspipe.runtime.stage_files import StageFiles, alone_in
from naspipe.runtime.transport import Endpoints, NoTransport, Transport
from naspipe.runtime.wakeup import Wakeup
from naspipe.stage.builder import build_admission, build_controller
from naspipe.stage.memory import residency_of
from naspipe.trace.event_log import EventLogWriter
from naspipe.trace.log import AccessLogWriter
from naspipe.trace.run_directory import RunDirectory
from naspipe.trace.snapshot import write_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One stream of a job: what is trained, and where its results go."""

    workload: Workload
    subnets: tuple[Subnet, ...]
    partitions: tuple[Partition, ...]
    """Of every subnet."""
    priorities: tuple[Priorities, ...] | None = None
    """Of every subnet, where the dispatch order asks for them."""
    directory: RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pipeline, as every stage needs to know it."""

    streams: tuple[StreamJob, ...]
    """What shares the pipeline; one synchronisation policy for all."""
    execution: Execution
    bulk: int = 1
    """Subnets that the policy ``bsp`` trains at the same versions."""
    memory: MemoryPlan | None = None
    """What layers may occupy on each stage's device; None for no limit."""

    @property
    def workloads(self) -> list[Workload]:
        """Of each stream."""
        return [stream.workload for stream in self.streams]

    @property
    def policy(self) -> str:
        """The synchronisation policy's name."""
        return self.streams[0].workload.definition.policy

    def admitted(
        self, stream: StreamId, sequence_id: int
    ) -> tuple[Subnet, Partition, Priorities | None]:
        """What every stage is told of a subnet when it is admitted."""
        job = self.streams[stream]
        priorities = job.priorities[sequence_id] if job.priorities else None
        return job.subnets[sequence_id], job.partitions[sequence_id], priorities


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
        directories = [stream.directory for stream in self._job.streams]
        with ExitStack() as stack:
            logs = [
                stack.enter_context(AccessLogWriter(directory.access_log(self._stage)))
                for directory in directories
            ]
            events = None
            if self._job.execution.record_events:
                path = directories[0].events_log(self._stage)
                events = stack.enter_context(EventLogWriter(path))
            self._train(StageFiles(logs, events, self._reporter))

    def _train(self, sink: StageFiles) -> None:
        job, stage, execution = self._job, self._stage, self._job.execution
        compute = StageCompute(job.workloads, self._placement)
        controller = build_controller(
            stage,
            [workload.space.rules for workload in job.workloads],
            policy=job.policy,
            bulk=job.bulk,
            order=execution.order,
            residency=residency_of(job.memory, stage, execution),
            starts_partly_clear=execution.partly_clear,
        )
        self._driver = StageDriver(
            stage,
            controller,
            compute,
            self._transport,
            [
                build_admission(
                    job.policy,
                    len(stream.subnets),
                    window=execution.window,
                    bulk=job.bulk,
                    stages=execution.stages,
                )
                for stream in job.streams
            ],
            job.admitted,
            sink,
            timeout_seconds=execution.timeout_seconds,
            digests=execution.digests,
        )
        with calm_collector():
            self._driver.run()
        self._driver.finishing()
        measured = {
            "pushed_bytes": self._driver.pushed_bytes,
            "memory_retries": self._driver.memory_retries,
            **self._placement.measured(),
            **measured_memory(),
        }
        shards = [
            self._save(stream, store)
            for stream, store in zip(job.streams, compute.stores, strict=True)
        ]
        self._reporter.report("done", {"streams": shards, "measured": measured})

    def _save(self, stream: StreamJob, store: LayerStore) -> dict[str, Any]:
        layers = [(alone_in(layer), stored) for layer, stored in store.items()]
        tensors, scalars, versions = snapshot(stream.workload.space, layers)
        shard = write_checkpoint(
            stream.directory.checkpoint("final"), f"stage-{self._stage}.safetensors", tensors
        )
        return {"shard": shard, "scalars": scalars, "versions": versions}


def _placement(job: Job, stage: StageId, wakeup: Wakeup) -> Placement:
    """Where the stage's layers and tensors live. Starts CUDA, where that is the device."""
    execution = job.execution
    name = start_device(execution, stage)
    if job.memory is None:
        return Placement(torch.device(name))
    device = open_device(name, job.memory.budgets[stage], execution.bandwidth, execution.latency)
    limits = LayerUse(0, job.memory.budgets[stage], job.memory.needs[stage].least_bytes)
    host_bytes = parse_bytes(execution.host_memory) or None
    recipe = job.workloads[0].definition.recipe
    return SwappedPlacement(device, recipe, limits, host_bytes, wakeup)


def run_alone(job: Job, reporter: Reporter) -> None:
    """The run on one stage, in this process and without sockets; never on a GPU."""
    _run_stage(job, StageId(0), NoTransport, reporter)


def _run_stage(
    job: Job, stage: StageId, connect: Callable[[Wakeup], Transport], reporter: Reporter
) -> None:
    """Run one stage to its end; a failure is reported, never raised."""
    task = "start"
    try:
        with ExitStack() as stack:
            # Before the device starts: cuBLAS reads its settings once.
            threads = job.workloads[0].definition.recipe.threads
            stack.enter_context(deterministic_torch(threads))
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
        _run_stage(job, stage, partial(connect, job.execution, stage, endpoints), reporter)


def _end_with_launcher(read_end: int) -> None:
    """Wait for the end of a pipe that only the launcher holds open."""
    os.read(read_end, 1)
    os._exit(1)
