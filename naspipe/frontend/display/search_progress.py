"""Live progress of a search."""

from __future__ import annotations

import time

from naspipe.frontend.display.bar import Bar
from naspipe.search.search_directory import Candidate

_LINE_EVERY_SECONDS = 10.0


class SearchProgress(Bar):
    """Shows subnets, speed and the best score while a search goes; see ``SearchObserver``."""

    def __init__(self, title: str, budget: int, score: str, is_quiet: bool = False) -> None:
        super().__init__(title, budget, is_quiet, _LINE_EVERY_SECONDS)
        self._score = score
        self._start = time.monotonic()

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """The next subnet is judged."""
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
