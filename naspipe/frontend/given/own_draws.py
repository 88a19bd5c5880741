"""A user's strategy that may draw from the global generators, as the run does beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.data.keyed.global_draws import Randomness
from naspipe.streams.ports import ExplorationStrategy


class OwnDraws:
    """A strategy with global generators of its own, so that it draws the same on any stages.

    A run on one stage computes in the launcher's process, and starts them before each block.

    Args:
        make: the strategy; it may draw, too.
        seed: where its draws begin.
    """

    def __init__(self, make: Callable[[], ExplorationStrategy], seed: int) -> None:
        self._randomness = Randomness(seed)
        with self._randomness.in_use():
            self._strategy = make()

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        """See :class:`ExplorationStrategy`."""
        with self._randomness.in_use():
            return self._strategy.propose(sequence_id)

    def observe(self, sequence_id: int, score: float) -> None:
        """See :class:`ExplorationStrategy`."""
        with self._randomness.in_use():
            self._strategy.observe(sequence_id, score)

    def finish(self) -> None:
        """The stream is complete: a strategy that has something to end may end it."""
        if finish := getattr(self._strategy, "finish", None):
            finish()
