"""What a search tells and asks.

Implementations: :class:`SearchObserver` is
:class:`naspipe.frontend.search.search_record.SilentSearchObserver` or
:class:`naspipe.frontend.display.search_progress.SearchProgress`; :class:`Prices` is
:class:`naspipe.frontend.search.search_parts.Pricer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naspipe.search.limits import Cost
from naspipe.search.search_directory import Candidate


class SearchObserver(Protocol):
    """Told of a search as it goes."""

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """The next subnet is judged, in sequence order; ``best`` is the best one so far."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's compute time so far, of the time since it began."""
        ...


class Prices(Protocol):
    """What subnets cost."""

    def of(self, choices: Sequence[int]) -> Cost:
        """Of one subnet."""
        ...
