"""One stage from start to end: build it, run it, write what it leaves."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from naspipe.core.config import parse_bytes
from naspipe.core.errors import ConfigError, StorageError, reason
from naspipe.core.events import StreamResumed
from naspipe.core.ids import SequenceId, StageId, StreamId
from naspipe.core.planned import Planned
from naspipe.runtime.checkpoint import layer_key
from naspipe.runtime.checkpointer import Checkpointer, CheckpointStream, write_part
from naspipe.runtime.compute import StageCompute
from naspipe.runtime.connections import connect, start_device
from naspipe.runtime.cuda_device import measured_memory
from naspipe.runtime.determinism import deterministic_torch
from naspipe.runtime.device import open_device
from naspipe.runtime.driver import StageDriver
from naspipe.runtime.garbage import calm_collector
from naspipe.runtime.job import Job, StreamJob
from naspipe.runtime.layer_store import LayerStore
from naspipe.runtime.messages import LauncherMessage
from naspipe.runtime.out_of_memory import LayerUse
from naspipe.runtime.placement import Placement, SwappedPlacement
from naspipe.runtime.reports import Reporter, ZmqReporter
from naspipe.runtime.restored import capture
from naspipe.runtime.stage_files import StageFiles, alone_in
from naspipe.runtime.transport import Endpoints, NoTransport, Transport
from naspipe.runtime.wakeup import Wakeup
from naspipe.stage.builder import build_admission, build_controller
from naspipe.stage.intake import Intake
from naspipe.stage.memory import residency_of
from naspipe.trace.checkpoints import FINAL
from naspipe.trace.event_log import EventLogWriter
from naspipe.trace.log import AccessLogWriter

GRACE_SECONDS = 10.0
"""How much longer a stage waits than a hung one may take: the launcher names that one first."""

_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


class StageRun:
    """A stage of a job, ready to run."""

    def __init__(
        self,
        job: Job,
        stage: StageId,
        transport: Transport,
        reporter: Reporter,
        placement: Placement,
        wakeup: Wakeup,
    ) -> None:
        self._wakeup = wakeup
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
        job, stage, generation = self._job, self._stage, self._job.generation
        directories = [stream.directory for stream in job.streams]
        with ExitStack() as stack:
            logs = [
                stack.enter_context(
                    AccessLogWriter(directory.access_log(stage, generation), generation)
                )
                for directory in directories
            ]
            events = None
            if job.execution.record_events:
                path = directories[0].events_log(stage, generation)
                events = stack.enter_context(EventLogWriter(path))
            restored = [stream.restored for stream in job.streams]
            compute = StageCompute(job.workloads, self._placement, restored)
            checkpointer = stack.enter_context(self._checkpointer(compute, logs))
            self._train(StageFiles(logs, events, self._reporter), compute, checkpointer)

    def _checkpointer(self, compute: StageCompute, logs: Sequence[AccessLogWriter]) -> Checkpointer:
        job = self._job
        streams = [
            CheckpointStream(
                stream.workload.space, stream.directory.checkpoints, store, stream.restored, log
            )
            for stream, store, log in zip(job.streams, compute.stores, logs, strict=True)
        ]
        every = job.execution.checkpoint_every
        return Checkpointer(
            self._stage, job.generation, streams, every, self._reporter, self._wakeup.set
        )

    def _train(self, sink: StageFiles, compute: StageCompute, checkpointer: Checkpointer) -> None:
        job, stage, execution = self._job, self._stage, self._job.execution
        controller = build_controller(
            stage,
            [workload.space.rules for workload in job.workloads],
            policy=job.policy,
            bulk=job.bulk,
            order=execution.order,
            residency=residency_of(job.memory, stage, execution),
            starts_partly_clear=execution.partly_clear,
        )
        intakes = self._intakes()
        self._driver = StageDriver(
            stage,
            controller,
            compute,
            self._transport,
            intakes,
            sink,
            checkpointer,
            self._resumed(),
            timeout_seconds=execution.timeout_seconds + GRACE_SECONDS,
            digests=execution.digests,
        )
        with calm_collector():
            self._driver.run()
        self._driver.finishing()
        measured = {
            **self._driver.measured,
            **self._placement.measured(),
            **measured_memory(),
        }
        is_whole = all(
            intake.next == stream.steps for intake, stream in zip(intakes, job.streams, strict=True)
        )
        parts = [
            self._save(stream, intake.known, store)
            for stream, intake, store in zip(job.streams, intakes, compute.stores, strict=True)
            if is_whole
        ]
        self._reporter.report("done", {"streams": parts, "measured": measured})

    def _intakes(self) -> list[Intake]:
        execution = self._job.execution
        return [
            Intake(
                build_admission(
                    self._job.policy,
                    stream.steps,
                    window=execution.window,
                    bulk=self._job.bulk,
                    stages=execution.stages,
                    first=stream.first,
                ),
                stream.planned,
            )
            for stream in self._job.streams
        ]

    def _resumed(self) -> list[StreamResumed]:
        now_ns = time.monotonic_ns()
        return [
            StreamResumed(now_ns, StreamId(number), SequenceId(stream.first), stream.kept)
            for number, stream in enumerate(self._job.streams)
            if stream.restored
        ]

    def _save(
        self, stream: StreamJob, planned: Sequence[Planned], store: LayerStore
    ) -> dict[str, Any]:
        """Write this stage's shard of the final checkpoint."""
        space = stream.workload.space
        layers = {
            layer_key(space, alone_in(layer)): capture(stored, (stored.version,))
            for layer, stored in store.items()
        }
        used = {
            each.subnet.layer(block)
            for each in planned[stream.first :]
            for block in range(len(space))
        }
        for layer, versions, keeper in stream.kept:
            if keeper == self._stage and layer not in used and stream.restored:
                snapshot = stream.restored.snapshot(layer)
                if snapshot is not None:
                    layers[layer_key(space, alone_in(layer))] = snapshot.at(versions[-1])
        directory = stream.directory.checkpoints.working(FINAL, self._job.generation)
        return write_part(directory, self._stage, layers)


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


def run_alone(job: Job, reporter: Reporter, mailbox: deque[LauncherMessage]) -> None:
    """The run on one stage, in this process and without sockets; never on a GPU."""
    _run_stage(job, StageId(0), partial(NoTransport, mailbox), reporter)


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
            stage_run = StageRun(job, stage, transport, reporter, placement, wakeup)
            reporter.watch(lambda: stage_run.current)
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
        "message": reason(error) if isinstance(error, OSError) else str(error),
        "kind": _kind(error),
    }


def _kind(error: Exception) -> str:
    """Whose failure it is: the input's, the storage's, or (empty) anybody's."""
    if isinstance(error, ConfigError):
        return "input"
    is_storage = isinstance(error, OSError) and error.errno in _STORAGE
    return "storage" if is_storage or isinstance(error, StorageError) else ""


def stage_main(job: Job, stage: StageId, endpoints: Endpoints, lifeline: tuple[int, int]) -> None:
    """The body of a stage's process: ends with the run, its own failure, or the launcher."""
    # The launcher answers signals for all: with a checkpoint, for which it needs its stages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    read_end, write_end = lifeline
    os.close(write_end)
    threading.Thread(target=_end_with_launcher, args=(read_end,), daemon=True).start()
    with ZmqReporter(stage, endpoints) as reporter:
        _run_stage(job, stage, partial(connect, job.execution, stage, endpoints), reporter)


def _end_with_launcher(read_end: int) -> None:
    """Wait for the end of a pipe that only the launcher holds open."""
    os.read(read_end, 1)
    os._exit(1)
