"""Build one stage of a training job, run it, and write its results.

This module chooses the transport and the placement of a stage, assembles the components of its
driver, and writes its layers at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, WorkerId, alone_in
from naspipe.config.text import parse_bytes
from naspipe.engine.admission import Intake
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.events import StreamResumed
from naspipe.jobs.ports import PipelineJob
from naspipe.machine.cuda import measured_memory, start_cuda
from naspipe.machine.emulated import open_device
from naspipe.machine.forking import calm_collector, kept_heap
from naspipe.machine.out_of_memory import LayerUse
from naspipe.machine.staging import Staging
from naspipe.plan.memory import residency_of
from naspipe.store.access_log import AccessLogWriter
from naspipe.store.checkpoints import FINAL
from naspipe.store.event_log import EventLogWriter
from naspipe.wire import device_rings
from naspipe.wire.device_rings import DeviceRings, DeviceTransport
from naspipe.wire.emulated_link import Link, LinkedTransport
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.ports import Reporter, Transport
from naspipe.wire.transport import Wakeup, ZmqTransport
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.checkpoints.capturing import Capturer
from naspipe.worker.checkpoints.checkpointer import Checkpointer, CheckpointStream, Part
from naspipe.worker.checkpoints.restored import CaptureMemory, layer_key
from naspipe.worker.driver import StageDriver
from naspipe.worker.job import StreamJob, TrainingJob
from naspipe.worker.late_fields import LateFields, watched
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.placement import Placement, SwappedPlacement, device_name
from naspipe.worker.stage_files import StageFiles


def start_device(execution: Execution, worker: WorkerId) -> str:
    """Return the name of the stage's device, after initialising CUDA if it is a GPU."""
    name = device_name(execution.hardware.device, worker)
    if name != "cpu":
        start_cuda(torch.device(name))
    return name


def connect(job: PipelineJob, worker: WorkerId, endpoints: Endpoints, wakeup: Wakeup) -> Transport:
    """Start this worker's device and return its transport to the other workers.

    Raises:
        ConfigError: if CUDA cannot be started, or the data path needs all stages on one host.
    """
    execution, count = job.execution, job.positions.num_workers
    device = torch.device(start_device(execution, worker))
    link = Link(execution.wire.link_bandwidth, execution.wire.link_latency)
    make = partial(LinkedTransport, link) if link.is_emulated else ZmqTransport
    staging = Staging(device)
    sockets = make(worker, endpoints, wakeup, staging)
    if execution.wire.data_path in ("shm", "zmq") or count == 1:
        return sockets
    seconds = execution.watch.timeout_seconds
    if execution.wire.data_path == "cuda_ipc":
        if endpoints.rings is None:
            raise ConfigError("data_path=cuda_ipc: expected stages of one host, over transport=ipc")
        memory = device_rings.MEMORY(device)
        rings = DeviceRings(worker, count, endpoints.rings, memory, staging)
        return DeviceTransport(sockets, rings, seconds)
    from naspipe.wire.nccl_path import NcclTransport, Pairs

    pairs = Pairs(worker, count, device, endpoints.directory, seconds)
    return NcclTransport(sockets, pairs)


GRACE_SECONDS = 10.0
"""Extra time that a stage waits, so that the launcher first reports the stage that hangs."""


@dataclass(frozen=True, slots=True)
class StageSeat:
    """The identity of a stage in its process, and the objects that it uses."""

    stage: StageId
    transport: Transport
    reporter: Reporter
    placement: Placement
    wakeup: Wakeup


class StageRun:
    """A stage of a training job, ready to run."""

    def __init__(self, job: TrainingJob, seat: StageSeat) -> None:
        self._job = job
        self._seat = seat
        self._stage = seat.stage
        self._driver: StageDriver | None = None

    @property
    def current(self) -> str:
        return self._driver.current if self._driver else "start"

    def run(self) -> None:
        """Train this stage's part of every subnet, then write its layers and report the result."""
        job, stage, seat, generation = self._job, self._stage, self._seat, self._job.generation
        streams, participants = job.streams, job.participants
        execution, reporter = job.execution, seat.reporter
        intakes = [
            Intake(
                build_admission(
                    job.policy,
                    stream.num_passes,
                    window=stream.workload.window or execution.pipeline.window,
                    bulk=job.bulk,
                    stages=execution.workers,
                    first=stream.first,
                    steps=job.steps,
                    takes_part=stage in stages,
                ),
                stream.planned[stream.first :],
                stream.first,
                job.steps,
            )
            for stream, stages in zip(streams, participants, strict=True)
        ]
        with ExitStack() as stack:
            logs = [
                stack.enter_context(
                    AccessLogWriter(stream.directory.access_log(stage, generation), generation)
                )
                for stream in streams
            ]
            events = None
            if execution.records.events:
                path = streams[0].directory.events_log(stage, generation)
                events = stack.enter_context(EventLogWriter(path))
            is_alone = job.positions.num_workers == 1
            workloads = job.workloads if is_alone else watched(job.workloads, reporter)
            compute = StageCompute(
                workloads,
                seat.placement,
                [stream.restored for stream in streams],
                job.wiring,
                [stream.split for stream in streams],
            )
            for stream, store in zip(streams, compute.stores, strict=True):
                store.stateless = stream.stateless
            fields = stack.enter_context(LateFields(job, stage, compute, seat.wakeup, reporter))
            checkpointer = stack.enter_context(
                Checkpointer(
                    stage,
                    generation,
                    [
                        CheckpointStream(
                            stream.workload.space,
                            stream.directory.checkpoints,
                            store,
                            stream.restored,
                            log,
                            stream.workload.is_written and stage in stages,
                        )
                        for stream, stages, store, log in zip(
                            streams, participants, compute.stores, logs, strict=True
                        )
                    ],
                    execution.cut_every_steps * job.steps.passes,
                    reporter,
                    seat.wakeup.set,
                )
            )
            files = StageFiles(
                logs,
                events,
                reporter,
                execution.records.logged_steps,
                job.steps.passes,
                lambda: sum(each.under_way for each in intakes),
            )
            controller = build_controller(
                stage,
                [stream.rules for stream in streams],
                policy=job.policy,
                bulk=job.bulk,
                order=execution.pipeline.order,
                residency=residency_of(job.memory, stage, execution),
                starts_partly_clear=execution.pipeline.partly_clear,
                steps=job.steps,
                wiring=job.wiring,
                buffered=job.buffered,
                streams=[n for n, stages in enumerate(participants) if stage in stages],
                reduction_launch=execution.pipeline.reduction_launch,
                splits=any(stream.split for stream in streams),
            )
            now_ns = time.monotonic_ns()
            self._driver = StageDriver(
                stage,
                controller,
                intakes,
                compute=compute,
                stores=compute.stores,
                placement=seat.placement,
                transport=seat.transport,
                positions=job.positions,
                sink=files,
                checkpointer=checkpointer,
                timeout_seconds=execution.watch.timeout_seconds + GRACE_SECONDS,
                updates=compute.updates,
                fields=fields,
                digests=execution.records.digests,
                verified=job.verified_until,
                wiring=job.wiring,
                steps=job.steps,
                resumed=[
                    StreamResumed(now_ns, StreamId(number), SequenceId(stream.first), stream.kept)
                    for number, stream in enumerate(streams)
                    if stream.first
                ],
            )
            with calm_collector(), kept_heap():
                self._driver.run()
            self._driver.finishing()
            measured = {
                **self._driver.measured,
                **compute.measured,
                **seat.placement.measured(),
                **measured_memory(),
            }
            is_whole = all(
                intake.next == stream.num_passes
                for intake, stream in zip(intakes, streams, strict=True)
            )
            parts = [
                self._save(stream, intake.homes, store)
                for stream, intake, store in zip(streams, intakes, compute.stores, strict=True)
                if is_whole
            ]
            files.flush()  # while a failure can still be reported
            reporter.report("done", {"streams": parts, "measured": measured})

    def _save(
        self, stream: StreamJob, homes: Mapping[LayerId, StageId], store: LayerStore
    ) -> dict[str, Any]:
        """Write this stage's shard of the final checkpoint, without layers that only probes used.

        ``homes`` maps each layer that was used to the stage that used it first, which saves the
        layer if no update writes it.
        """
        space = stream.workload.space
        capturer = Capturer()
        unchanged = stream.unchanged
        elsewhere = {
            layer
            for layer, stage in homes.items()
            if stage != self._stage and (layer.block, layer.candidate) in unchanged
        }
        directory = stream.directory.checkpoints.working(FINAL, self._job.generation)
        with Part(directory, self._stage, CaptureMemory(), lambda: store.num_parameters) as part:
            for layer, stored in store.items():
                if layer in homes and layer not in elsewhere:
                    snapshot = capturer.capture(stored, (stored.version,), part.captured)
                    part.add(layer_key(space, alone_in(layer)), snapshot)
            for layer, _, keeper in stream.kept:
                if keeper == self._stage and layer not in homes and stream.restored:
                    newest = stream.restored.version(layer)
                    if newest is not None:
                        kept = stream.restored.capture(layer, (newest,), part.captured)
                        part.add(layer_key(space, alone_in(layer)), kept)
            part.close()
            return part.finish()


def open_placement(job: PipelineJob, worker: WorkerId) -> Placement:
    """Return the placement of the stage's layers and tensors, after starting a GPU if needed."""
    execution = job.execution
    name, stage = start_device(execution, worker), job.positions.stage(worker)
    if job.memory is None:
        return Placement(torch.device(name))
    device = open_device(
        name, job.memory.budgets[stage], execution.hardware.bandwidth, execution.hardware.latency
    )
    limits = LayerUse(0, job.memory.budgets[stage], job.memory.needs[stage].least_bytes)
    host_bytes = parse_bytes(execution.memory.host) or None
    permanent = job.memory.permanent
    return SwappedPlacement(device, job.recipes, limits, host_bytes, permanent)
