"""Who is told of an evaluation.

Implementations: :class:`naspipe.frontend.search.search_record.Recorder`,
:class:`naspipe.frontend.search.verifying_scores.FirstAndBest` and
:class:`naspipe.runtime.evaluating.score_sheet.ScoreSheet`.
"""

from __future__ import annotations

from typing import Protocol

from naspipe.search.scores import Scores


class ScoreObserver(Protocol):
    """Told of a search as it goes, in the launcher's process."""

    def on_scores(self, subnet: int, scores: Scores) -> None:
        """A subnet is judged; in any order."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's compute time so far, of the time since it began."""
        ...
