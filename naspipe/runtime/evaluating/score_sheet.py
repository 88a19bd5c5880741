"""The scores of an evaluation, kept for whoever started it."""

from __future__ import annotations

from naspipe.search.scores import Scores


class ScoreSheet:
    """See :class:`naspipe.runtime.evaluating.ports.ScoreObserver`."""

    def __init__(self) -> None:
        self.scores: dict[int, Scores] = {}
        """By subnet."""

    def on_scores(self, subnet: int, scores: Scores) -> None:
        """A subnet is judged."""
        self.scores[subnet] = scores

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Of no matter here."""
