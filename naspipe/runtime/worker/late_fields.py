"""Batch fields that come later than their batch: asked for at admission, told of when here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Self

from naspipe.core.events import InputArrived
from naspipe.core.ids import StreamId
from naspipe.core.task import Task
from naspipe.core.wiring import field_input
from naspipe.runtime.blocks.ports import BlockCompute
from naspipe.runtime.jobs.ports import FieldSource
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.wire.wakeup import Wakeup


class LateFields:
    """The sources of one stage; a context manager.

    Args:
        workloads: of each stream.
        compute: takes the fields.
        wakeup: set when something has come.
    """

    def __init__(
        self, workloads: Sequence[Workload], compute: BlockCompute, wakeup: Wakeup
    ) -> None:
        self._steps = [workload.definition.recipe.steps for workload in workloads]
        self._compute = compute
        self._waiting: dict[tuple[StreamId, str, int], list[Task]] = {}
        """By stream, field and batch."""
        self._sources: dict[tuple[StreamId, str], FieldSource] = {}
        with ExitStack() as stack:
            for number, workload in enumerate(workloads):
                for name, make in workload.field_sources.items():
                    source = make(wakeup.set)
                    stack.callback(source.close)
                    self._sources[StreamId(number), name] = source
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._resources.close()

    def request(self, task: Task, field: str) -> None:
        """A task will need a field of its batch."""
        batch = self._steps[task.stream].batch(task.sequence_id)
        tasks = self._waiting.setdefault((task.stream, field, batch), [])
        tasks.append(task)
        if len(tasks) == 1:
            self._sources[task.stream, field].request(batch)

    def take(self) -> Iterator[InputArrived]:
        """The fields that have come are handed to the compute."""
        for (stream, field), source in self._sources.items():
            for batch, value in source.take():
                for task in self._waiting.pop((stream, field, batch)):
                    name = field_input(field)
                    self._compute.accept(task, (value,), name)
                    yield InputArrived(time.monotonic_ns(), task, (), name)
