"""Batch fields that arrive later than their batch, such as teacher labels.

A stage requests them when a subnet is admitted, and the driver reports their arrival as events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import torch

from naspipe.config.ids import SequenceId, StageId, StreamId
from naspipe.config.wiring import field_input
from naspipe.data.loaders import short_digest
from naspipe.engine.events import InputArrived, Task
from naspipe.jobs.ports import FieldSource, SourceSeat
from naspipe.jobs.workload import Batches, Workload
from naspipe.wire.ports import Reporter
from naspipe.wire.transport import Wakeup
from naspipe.worker.blocks.ports import BlockCompute
from naspipe.worker.job import TrainingJob


class LateFields:
    """The sources of late fields on one stage; a context manager that closes them.

    ``compute`` receives the fields, ``wakeup`` is set when one has arrived, and ``reporter``
    forwards notes to the user.
    """

    def __init__(
        self,
        job: TrainingJob,
        stage: StageId,
        compute: BlockCompute,
        wakeup: Wakeup,
        reporter: Reporter,
    ) -> None:
        self._steps = [workload.definition.recipe.steps for workload in job.workloads]
        self._compute = compute
        self._wakeup = wakeup
        self._reporter = reporter
        self._notes: deque[str] = deque()
        """Notes from the threads of the sources."""
        self._waiting: dict[tuple[StreamId, str, int], list[Task]] = {}
        """Waiting tasks by stream, field and batch."""
        self._sources: dict[tuple[StreamId, str], FieldSource] = {}
        with ExitStack() as stack:
            for number, stream in enumerate(job.streams):
                if not stream.workload.field_sources:
                    continue
                groups, steps = job.execution.pipeline.groups, stream.workload.recipe.steps
                group = stage // job.execution.pipeline.stages
                passes = map(SequenceId, range(stream.first, stream.num_passes))
                own = (steps.batch(each) for each in passes if steps.group(each, groups) == group)
                seat = SourceSeat(
                    wake=wakeup.set,
                    note=self._note,
                    batches=tuple(dict.fromkeys(own)),
                    directory=stream.directory.path,
                    share=(group, groups),
                    generation=job.generation,
                )
                for name, make in stream.workload.field_sources.items():
                    source = make(seat)
                    stack.callback(source.close)
                    self._sources[StreamId(number), name] = source
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._resources.close()

    def request(self, task: Task, field: str) -> None:
        """Request a field that a task will need."""
        batch = self._steps[task.stream].batch(task.sequence_id)
        tasks = self._waiting.setdefault((task.stream, field, batch), [])
        tasks.append(task)
        if len(tasks) == 1:
            self._sources[task.stream, field].request(batch)

    def take(self) -> Iterator[InputArrived]:
        """Pass the fields that have arrived to ``compute``, and yield an event for each task."""
        while self._notes:
            self._reporter.report("note", {"text": self._notes.popleft()})
        for (stream, field), source in self._sources.items():
            for batch, value in source.take():
                for task in self._waiting.pop((stream, field, batch)):
                    name = field_input(field)
                    self._compute.accept(task, (value,), name)
                    yield InputArrived(time.monotonic_ns(), task, (), name)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._wakeup.set()


def watched(workloads: Sequence[Workload], reporter: Reporter) -> list[Workload]:
    """Return workloads that report the digests of their batches, for pipelines of several stages.

    Each stage makes the batches that its blocks and losses need. If the data are not a function of
    seed and number, inputs on one stage and targets on another would belong to different batches.
    """
    return [
        replace(each, data=_Watched(each.data, stream, reporter)) if each.is_trained else each
        for stream, each in enumerate(workloads)
    ]


class _Watched:
    def __init__(self, data: Batches, stream: int, reporter: Reporter) -> None:
        self._data, self._stream, self._reporter = data, stream, reporter

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        batch = self._data(seed, number)
        body = {"stream": self._stream, "number": number, "digest": short_digest(batch)}
        self._reporter.report("batch", body)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)
