"""Live progress of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from naspipe.cli.display.bar import Bar


class TrainingProgress:
    """Shows steps, speed, loss, bubble and time left while a run goes; see ``LaunchObserver``.

    Args:
        description: of the run.
        steps: of all streams.
        is_quiet: show nothing.
        every_seconds: from one line to the next, where there is no terminal.
        unit: of what is counted: steps, or passes where a step has several.
    """

    def __init__(
        self,
        description: str,
        steps: int,
        is_quiet: bool = False,
        every_seconds: float = 10.0,
        unit: str = "steps",
    ) -> None:
        self._bar = Bar(description, steps, is_quiet, every_seconds)
        self._steps = steps
        self._unit = unit
        self._first = self._done = 0
        self._start = time.monotonic()
        self._busy: dict[int, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, traceback)

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """A life of the run begins: steps that a checkpoint holds are done."""
        self._first = self._done = sum(firsts)
        self._busy = {}
        self._start = time.monotonic()
        self._bar.begin(self._done)

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known."""
        self._bar.show()
        self._done += 1
        speed = (self._done - self._first) / max(1e-9, time.monotonic() - self._start)
        numbers = f"{speed:.1f} {self._unit}/s  loss {loss:.4f}"
        if self._busy:
            bubble = 1 - sum(self._busy.values()) / len(self._busy)
            numbers += f"  bubble {bubble:.2f}"
        self._bar.update(
            self._done, numbers, f"{_duration((self._steps - self._done) / speed)} left"
        )

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's share of time spent computing."""
        self._bar.show()
        self._busy[stage] = busy_ns / max(1, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Accesses whose layer was there: written to the metrics, not shown."""

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """How the supernet does on held-out data."""
        listed = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
        self._bar.note(f"validation after {sequence_id + 1} {self._unit}  {listed}")

    def on_note(self, text: str) -> None:
        """Something happened that a line should say."""
        self._bar.say(f"naspipe: {text}")


def _duration(seconds: float) -> str:
    """Time as ``0:07:30``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
