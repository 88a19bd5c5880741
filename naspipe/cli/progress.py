"""Live progress of a run: a rich bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


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
        self._console = Console(stderr=True, quiet=is_quiet, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=is_quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task(description, total=steps, numbers="")
        self._description = description
        self._steps = steps
        self._every_seconds = every_seconds
        self._unit = unit
        self._first = self._done = 0
        self._start = self._printed = time.monotonic()
        self._busy: dict[int, float] = {}
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_shown:
            self._progress.stop()

    def _show(self) -> None:
        """Start the bar with the first report: input that is refused leaves no trace of it."""
        if not self._is_shown:
            self._is_shown = True
            self._progress.start()

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """A life of the run begins: steps that a checkpoint holds are done."""
        self._first = self._done = sum(firsts)
        self._busy = {}
        self._start = self._printed = time.monotonic()
        self._progress.reset(self._task, completed=self._done, numbers="")

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known."""
        self._show()
        self._done += 1
        now = time.monotonic()
        speed = (self._done - self._first) / max(1e-9, now - self._start)
        numbers = f"{speed:.1f} {self._unit}/s  loss {loss:.4f}"
        if self._busy:
            bubble = 1 - sum(self._busy.values()) / len(self._busy)
            numbers += f"  bubble {bubble:.2f}"
        self._progress.update(self._task, completed=self._done, numbers=numbers)
        is_due = now - self._printed > self._every_seconds or self._done == self._steps
        if is_due and not self._console.is_terminal:
            self._printed = now
            left = _duration((self._steps - self._done) / speed)
            line = f"{self._description}  {self._done}/{self._steps}  {numbers}  {left} left"
            self._console.print(line, markup=False, soft_wrap=True)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's share of time spent computing."""
        self._show()
        self._busy[stage] = busy_ns / max(1, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Accesses whose layer was there: written to the metrics, not shown."""

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """How the supernet does on held-out data."""
        listed = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
        self._console.print(
            f"{self._description}  validation after {sequence_id + 1} {self._unit}  {listed}",
            markup=False,
            soft_wrap=True,
        )

    def on_note(self, text: str) -> None:
        """Something happened that a line should say."""
        self._console.print(f"naspipe: {text}", markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    """Time as ``0:07:30``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
