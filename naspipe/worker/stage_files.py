"""Destinations of a stage's results: files of each stream, and reports to the launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from naspipe.config.ids import FIRST_STREAM, Access, AccessKind, SequenceId, StreamId, alone_in
from naspipe.engine.commands import WriteLayer
from naspipe.engine.events import Event
from naspipe.machine.device_waits import Wait, on_host
from naspipe.machine.staging import tensor_bytes
from naspipe.store.access_log import AccessLogWriter
from naspipe.store.event_log import EventLogWriter
from naspipe.wire.ports import Reporter
from naspipe.worker.blocks.ports import BlockResult
from naspipe.worker.layers.stored_layer import StoredLayer

_REPORT_EVERY_NS = 250_000_000


class StageSink(Protocol):
    """Receives a stage's results."""

    def access(self, access: Access) -> None: ...

    def result(self, stream: StreamId, sequence_id: SequenceId, result: BlockResult) -> None:
        """Record a subnet's loss or sums, in the order in which this stage computes them."""
        ...

    def event(self, event: Event) -> None: ...

    def written(self, command: WriteLayer, stored: StoredLayer) -> None:
        """Record a layer written by one of the first steps, for comparison with a plain loop."""
        ...

    def held(self, admitted: Sequence[int]) -> None:
        """Report that the stage has stopped admitting subnets, and how many it has, by stream."""
        ...


class StageWork(Protocol):
    """The work of a stage's process."""

    @property
    def current(self) -> str: ...

    def run(self) -> None: ...


class StageFiles:
    """The sink of a training run, which writes logs and sends reports.

    Each stream has its own files, which look as if it were the only stream of the run.

    Args:
        logs: the access log of each stream.
        events: the event log; None to record no events.
        reporter: sends reports to the launcher.
        every: record the accesses of every Nth step; 0 for none.
        passes: the number of passes per step.
        pending: returns the number of subnets in flight on this stage.
    """

    def __init__(
        self,
        logs: Sequence[AccessLogWriter],
        events: EventLogWriter | None,
        reporter: Reporter,
        every: int = 1,
        passes: int = 1,
        pending: Callable[[], int] = lambda: 0,
    ) -> None:
        self._every = every
        self._passes = passes
        self._pending = pending
        self._logs = tuple(logs)
        self._events = events
        self._reporter = reporter
        self._start_ns = self._reported_ns = time.monotonic_ns()
        self._busy_ns = self._hits = self._reads = 0

    def access(self, access: Access) -> None:
        if self._every and access.sequence_id // self._passes % self._every == 0:
            stream = access.layer.stream
            is_alone = stream == FIRST_STREAM
            alone = access if is_alone else access._replace(layer=alone_in(access.layer))
            self._logs[stream].append(alone)
        self._busy_ns += access.end_ns - access.start_ns
        if access.kind is not AccessKind.WRITE:
            self._reads += 1
            self._hits += access.is_hit
        if access.end_ns - self._reported_ns > _REPORT_EVERY_NS:
            self._reported_ns = access.end_ns
            elapsed_ns = access.end_ns - self._start_ns
            use = {"busy_ns": self._busy_ns, "elapsed_ns": elapsed_ns}
            use |= {"hits": self._hits, "reads": self._reads, "pending": self._pending()}
            self._reporter.report("busy", use)

    def result(self, stream: StreamId, sequence_id: SequenceId, result: BlockResult) -> None:
        value, bits = _number(result.value, Wait.LOSS)
        metrics = {
            name: _number(each, Wait.METRIC) for name, each in (result.metrics or {}).items()
        }
        body = {
            "stream": stream,
            "sequence_id": sequence_id,
            "section": result.section,
            "loss": value,
            "bits": bits,
            "batch": result.batch,
            "metrics": metrics,
        }
        self._reporter.report("loss", body)

    def written(self, command: WriteLayer, stored: StoredLayer) -> None:
        body = {
            "stream": command.layer.stream,
            "sequence_id": command.sequence_id,
            "layer": stored.label,
            "digests": stored.tensor_digests(),
        }
        self._reporter.report("written", body)

    def flush(self) -> None:
        """Flush all logs to the operating system."""
        for log in self._logs:
            log.flush()
        if self._events is not None:
            self._events.flush()

    def held(self, admitted: Sequence[int]) -> None:
        self._reporter.report("held", {"admitted": list(admitted)})

    def event(self, event: Event) -> None:
        if self._events is not None:
            self._events.append(event)


def _number(tensor: torch.Tensor, why: Wait) -> tuple[float, str]:
    there = on_host(tensor, why)  # the block has finished, so this waits only for the copy
    return float(there), tensor_bytes(there).numpy().tobytes()[::-1].hex()
