"""Live progress of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from naspipe.frontend.display.bar import Bar


class TrainingProgress(Bar):
    """Shows passes, speed, loss, bubble and time left while a run goes; see ``LaunchObserver``.

    Args:
        title: of the run.
        num_passes: of all streams.
        is_quiet: show nothing.
        every_seconds: from one line to the next, where there is no terminal.
        unit: what passes are called: steps, where each step has one.
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
        """A life of the run begins: passes that a checkpoint holds are done."""
        self._first = self._done = sum(firsts)
        self._start = time.monotonic()
        self.begin(self._done)

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A pass's loss is known."""
        self.show()
        self._done += 1
        speed = (self._done - self._first) / max(1e-9, time.monotonic() - self._start)
        numbers = f"{speed:.1f} {self._unit}/s  loss {loss:.4f}"
        if self.busy is not None:
            numbers += f"  bubble {1 - self.busy:.2f}"
        left = (self._num_passes - self._done) / speed
        self.update(self._done, numbers, f"{_duration(left)} left")

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """A user's own numbers: written to the metrics, not shown."""

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's share of time spent computing."""
        self.show()
        super().on_busy(stage, busy_ns, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Accesses whose layer was there: written to the metrics, not shown."""

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """How the supernet does on held-out data."""
        listed = "  ".join(f"{name} {score:.4f}" for name, score in scores.items())
        self.note(f"validation after {sequence_id + 1} {self._unit}  {listed}")

    def on_note(self, text: str) -> None:
        """Something happened that a line should say."""
        self.say(f"naspipe: {text}")


def _duration(seconds: float) -> str:
    """Time as ``0:07:30``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
