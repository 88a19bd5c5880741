"""Progress of work on stages: a bar, or a line from time to time in a log.

The bar is for terminals and for notebooks with ipywidgets; other notebooks show lines.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Self, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from naspipe.search.search_directory import Candidate


class LastingStream:
    """A stream to stderr that ignores write errors, so that they never end a run."""

    def __init__(self) -> None:
        self._lost = 0

    @property
    def _stream(self) -> TextIO | None:
        return sys.stderr

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text) if self._stream else 0
        except (OSError, ValueError):
            self._lost += 1
            return len(text)

    def flush(self) -> None:
        try:
            if self._stream:
                self._stream.flush()
        except (OSError, ValueError):
            self._lost += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Bar:
    """A progress bar on stderr; a context manager.

    It appears with the first call of :meth:`show`, so that nothing is shown for rejected input.
    Without a terminal, a line is printed every ``every_seconds``.
    """

    def __init__(self, title: str, total: int, is_quiet: bool, every_seconds: float) -> None:
        self._console = Console(file=cast(TextIO, LastingStream()), quiet=is_quiet, highlight=False)
        has_widgets = self._console.is_jupyter and find_spec("ipywidgets") is not None
        self._is_live = self._console.is_terminal or has_widgets
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=is_quiet or not self._is_live,
        )
        self._task = self._progress.add_task(title, total=total, numbers="")
        self._title, self._total = title, total
        self._every_seconds = every_seconds
        self._printed = time.monotonic()
        self._busy: dict[int, float] = {}
        self.is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_shown:
            self._progress.stop()

    def show(self) -> None:
        """Start the bar; later calls do nothing."""
        if not self.is_shown:
            self.is_shown = True
            self._progress.start()

    def begin(self, done: int) -> None:
        """Start at ``done``, the number of units completed earlier."""
        self._printed = time.monotonic()
        self._busy = {}
        self._progress.reset(self._task, completed=done, numbers="")

    def update(self, done: int, numbers: str, left: str = "") -> None:
        """Set the number of units done; ``left`` is shown in lines only."""
        self._progress.update(self._task, completed=done, numbers=numbers)
        now = time.monotonic()
        is_due = now - self._printed > self._every_seconds or done == self._total
        if is_due and not self._is_live:
            self._printed = now
            self.say(
                "  ".join(filter(None, [f"{self._title}  {done}/{self._total}", numbers, left]))
            )

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self._busy[stage] = busy_ns / max(1, elapsed_ns)

    @property
    def busy(self) -> float | None:
        """The fraction of time spent computing, averaged over the stages that have reported."""
        return sum(self._busy.values()) / len(self._busy) if self._busy else None

    def note(self, text: str) -> None:
        self.say(f"{self._title}  {text}")

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class TrainingProgress(Bar):
    """Shows passes, speed, loss, bubble ratio and remaining time of a run; see ``LaunchObserver``.

    ``unit`` is the name of passes: "steps" if each step has one pass.
    """

    def __init__(
        self,
        title: str,
        num_passes: int,
        is_quiet: bool = False,
        every_seconds: float = 10.0,
        unit: str = "steps",
    ) -> None:
        super().__init__(title, num_passes, is_quiet, every_seconds)
        self._num_passes = num_passes
        self._unit = unit
        self._first = self._done = 0
        self._start = time.monotonic()

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """Begin an attempt; the passes in its checkpoint are done."""
        self._first = self._done = sum(firsts)
        self._start = time.monotonic()
        self.begin(self._done)

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        self.show()
        self._done += 1
        speed = (self._done - self._first) / max(1e-9, time.monotonic() - self._start)
        numbers = f"{speed:.1f} {self._unit}/s  loss {loss:.4f}"
        if self.busy is not None:
            numbers += f"  bubble {1 - self.busy:.2f}"
        left = (self._num_passes - self._done) / speed
        self.update(self._done, numbers, f"{_duration(left)} left")

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """Metrics are written to files, but not shown."""

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self.show()
        super().on_busy(stage, busy_ns, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Hit rates are written to files, but not shown."""

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        listed = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
        self.note(f"validation after {sequence_id + 1} {self._unit}  {listed}")

    def on_note(self, text: str) -> None:
        self.say(f"naspipe: {text}")


def _duration(seconds: float) -> str:
    """Format a time as ``0:07:30``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


_LINE_EVERY_SECONDS = 10.0


class SearchProgress(Bar):
    """Shows subnets, speed and the best score of a search; see ``SearchObserver``."""

    def __init__(self, title: str, budget: int, score: str, is_quiet: bool = False) -> None:
        super().__init__(title, budget, is_quiet, _LINE_EVERY_SECONDS)
        self._score = score
        self._start = time.monotonic()

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        if not self.is_shown:
            self._start = time.monotonic()
            self.show()
        seconds = time.monotonic() - self._start
        speed = candidate.sequence_id / seconds if seconds > 0 else 0.0
        numbers = f"{speed:.2f} subnets/s"
        if best is not None:
            value = best.scores.of(self._score)
            numbers += f"  best {self._score} {value:.4f} (subnet {best.sequence_id})"
        if self.busy is not None:
            numbers += f"  busy {self.busy:.2f}"
        self.update(candidate.sequence_id + 1, numbers)


class RatingProgress(Bar):
    """Shows paths, speed and the best score of the block being rated; see ``SearchObserver``."""

    def __init__(self, title: str, num_paths: int, is_quiet: bool = False) -> None:
        super().__init__(title, num_paths, is_quiet, _LINE_EVERY_SECONDS)
        self._done, self._block = 0, -1
        self._start = time.monotonic()

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """Count a rated path; the first one of each block has number 0."""
        self._block += candidate.sequence_id == 0
        if not self.is_shown:
            self._start = time.monotonic()
            self.show()
        seconds = time.monotonic() - self._start
        numbers = f"block {self._block}"
        if seconds > 0 and self._done:
            numbers += f"  {self._done / seconds:.2f} paths/s"
        if best is not None:
            numbers += f"  best {best.scores.loss:.4f}"
        self._done += 1
        self.update(self._done, numbers)
