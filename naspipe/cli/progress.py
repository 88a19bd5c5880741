"""Live progress of a run: a rich bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_SECONDS = 10.0


class TrainingProgress:
    """Shows steps, speed, loss and bubble while a run goes; see ``LaunchObserver``."""

    def __init__(self, description: str, steps: int, stages: int, is_quiet: bool = False) -> None:
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
        self._stages = stages
        self._done = 0
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

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known."""
        self._show()
        if self._done == 0:
            self._start = time.monotonic()
        self._done += 1
        now = time.monotonic()
        speed = (self._done - 1) / (now - self._start) if now > self._start else 0.0
        numbers = f"{speed:.1f} steps/s  loss {loss:.4f}"
        if self._busy:
            bubble = 1 - sum(self._busy.values()) / (len(self._busy) or 1)
            numbers += f"  bubble {bubble:.2f}"
        self._progress.update(self._task, completed=self._done, numbers=numbers)
        is_due = now - self._printed > _LINE_EVERY_SECONDS or self._done == self._steps
        if is_due and not self._console.is_terminal:
            self._printed = now
            self._console.print(f"{self._description}  {self._done}/{self._steps}  {numbers}")

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's share of time spent computing."""
        self._show()
        self._busy[stage] = busy_ns / max(1, elapsed_ns)

    def on_note(self, text: str) -> None:
        """Something happened that a line should say."""
        self._console.print(f"naspipe: {text}", markup=False)
