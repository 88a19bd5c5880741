"""Metrics of a run as it goes: into files of its run directories."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from naspipe.config.definition import Definition
from naspipe.config.recipe import learning_rate
from naspipe.config.steps import Steps
from naspipe.frontend.training.ports import METRICS, ScalarFile, Values
from naspipe.frontend.training.tensorboard_file import TensorBoardFile
from naspipe.frontend.training.vitals import Pulse, ResidentMemory
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.trace.results.metrics_file import MetricsFile
from naspipe.trace.results.run_directory import RunDirectory


class Recording:
    """A :class:`LaunchObserver` that writes metrics, and tells another one everything.

    While it is entered, each run directory has a heartbeat.

    Each stream's steps are written in sequence order: a step waits until all earlier ones are
    there. What waits when a life ends is left out. Where a step has several passes, each of them
    is written, with its number. ``bubble_ratio`` (1 - busy time / time of
    all stages) and ``hit_rate`` are those of the whole pipeline so far in this life, warm-up
    included, as of the stages' last words; ``steps_per_second`` counts this life's steps. ``time``
    is in seconds since 1970, ``resident_bytes`` of the processes of this ``host``, and ``pending``
    the most subnets under way on a stage.

    Args:
        directories: of each stream.
        definitions: of each stream.
        observer: the other one.
        tensorboard: write TensorBoard's files, too.
    """

    def __init__(
        self,
        directories: Sequence[RunDirectory],
        definitions: Sequence[Definition],
        observer: LaunchObserver,
        tensorboard: bool,
    ) -> None:
        self._directories = tuple(directories)
        self._definitions = tuple(definitions)
        self._observer = observer
        self._tensorboard = tensorboard
        self._open = ExitStack()
        self._files: list[list[ScalarFile]] = []
        self._next: list[int] = []
        self._waiting: dict[tuple[int, int], Values] = {}
        self._metrics: dict[tuple[int, int], Values] = {}
        self._use: dict[int, tuple[int, int]] = {}
        self._hits: dict[int, tuple[int, int]] = {}
        self._pending: dict[int, int] = {}
        self._firsts: list[int] = [0] * len(self._directories)
        self._loss: dict[int, float | str | None] = {}
        self._step_time: dict[int, float] = {}
        self._memory = ResidentMemory()
        self._pulse = Pulse([directory.path for directory in directories], self.vitals)
        self._host = os.uname().nodename
        self._start = time.monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        self._pulse.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._pulse.__exit__(*exception)
        self._open.close()

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """See :class:`LaunchObserver`.

        Raises:
            StorageError: when a file cannot be written.
        """
        self._open.close()
        self._files = []
        for stream, (directory, sequence_id) in enumerate(
            zip(self._directories, firsts, strict=True)
        ):
            first = self._steps(stream).step(sequence_id)
            files: list[ScalarFile] = [MetricsFile(directory.metrics, first)]
            self._open.callback(files[-1].close)
            if self._tensorboard:
                files.append(TensorBoardFile(directory.tensorboard, generation, first))
                self._open.callback(files[-1].close)
            self._files.append(files)
        self._next = list(firsts)
        self._waiting, self._use, self._hits, self._done = {}, {}, {}, 0
        self._metrics, self._pending, self._loss = {}, {}, {}
        self._firsts = list(firsts)
        self._start = time.monotonic()
        self._observer.on_begin(generation, firsts)

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`LaunchObserver`.

        Raises:
            StorageError: when a file cannot be written.
        """
        self._done += 1
        self._step_time[stream] = time.time()
        self._waiting[stream, sequence_id] = self._values(stream, sequence_id, loss)
        while values := self._waiting.pop((stream, self._next[stream]), None):
            self._write(stream, self._next[stream], values)
            if "probe" not in values:
                self._loss[stream] = values["loss"]
            self._next[stream] += 1
        self._observer.on_loss(stream, sequence_id, loss)

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """See :class:`LaunchObserver`."""
        named = {f"{METRICS}{name}": value for name, value in metrics.items()}
        self._metrics[stream, sequence_id] = named
        self._observer.on_metrics(stream, sequence_id, metrics)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """See :class:`LaunchObserver`."""
        self._use[stage] = busy_ns, elapsed_ns
        self._observer.on_busy(stage, busy_ns, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """See :class:`LaunchObserver`."""
        self._hits[stage] = hits, reads
        self._observer.on_hits(stage, hits, reads)

    def on_pending(self, stage: int, subnets: int) -> None:
        """See :class:`RunObserver`; nobody else is told."""
        self._pending[stage] = subnets

    def vitals(self, stream: int) -> dict[str, Any]:
        """What a heartbeat says of a stream; called on another thread, too."""
        steps, definition = self._steps(stream), self._definitions[stream]
        done = self._next[stream] if self._next else 0
        seconds = time.monotonic() - self._start
        return {
            "step": done // steps.passes,
            "steps": definition.steps,
            "steps_per_second": (done - self._firsts[stream]) / steps.passes / seconds,
            "pending": max(list(self._pending.values()), default=None),
            "resident_bytes": self._memory.bytes(),
            "last_step_time": self._step_time.get(stream),
            "loss": self._loss.get(stream),
            "bubble_ratio": None if (busy := _share(self._use)) is None else 1.0 - busy,
            "hit_rate": _share(self._hits),
        }

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """See :class:`LaunchObserver`.

        Raises:
            StorageError: when a file cannot be written.
        """
        named = {f"validation/{name}": score for name, score in scores.items()}
        self._write(stream, sequence_id, named)
        self._observer.on_validation(stream, sequence_id, scores)

    def on_note(self, text: str) -> None:
        """See :class:`LaunchObserver`."""
        self._observer.on_note(text)

    def _values(self, stream: int, sequence_id: int, loss: float) -> Values:
        definition, steps = self._definitions[stream], self._steps(stream)
        step = steps.step(sequence_id)
        busy = _share(self._use)
        seconds = time.monotonic() - self._start
        return {
            **steps.place(sequence_id),
            "loss": loss,
            **self._metrics.pop((stream, sequence_id), {}),
            "learning_rate": learning_rate(definition.recipe, step, definition.steps),
            "bubble_ratio": None if busy is None else 1.0 - busy,
            "hit_rate": _share(self._hits),
            "steps_per_second": self._done / steps.passes / seconds if seconds > 0 else None,
            "seconds": seconds,
            "time": time.time(),
            "host": self._host,
            "resident_bytes": self._memory.bytes(),
            "pending": max(self._pending.values(), default=None),
        }

    def _steps(self, stream: int) -> Steps:
        return self._definitions[stream].recipe.steps

    def _write(self, stream: int, sequence_id: int, values: Values) -> None:
        for file in self._files[stream]:
            file.write(self._steps(stream).step(sequence_id), values)


def _share(pairs: Mapping[int, tuple[int, int]]) -> float | None:
    """The first numbers of all stages over the second ones; None where there are none."""
    found = list(pairs.values())
    whole = sum(pair[1] for pair in found)
    return sum(pair[0] for pair in found) / whole if whole else None
