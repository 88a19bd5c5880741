"""A strategy whose proposals follow from every loss that it is told."""

from __future__ import annotations

from collections.abc import Sequence


class Climb:
    """Proposes the best subnet so far with some choices moved on, which ones by its number."""

    def __init__(self, counts: Sequence[int], seed: int) -> None:
        self._counts = counts
        self._best = tuple((seed + 7 * place) % count for place, count in enumerate(counts))
        self._best_score = float("-inf")
        self._proposed: dict[int, tuple[int, ...]] = {}

    def propose(self, sequence_id: int) -> tuple[int, ...]:
        """See ``naspipe.streams.feedback.ExplorationStrategy``."""
        self._proposed[sequence_id] = tuple(
            (choice + ((place + sequence_id) % 3 == 0)) % count
            for place, (choice, count) in enumerate(zip(self._best, self._counts, strict=True))
        )
        return self._proposed[sequence_id]

    def observe(self, sequence_id: int, score: float) -> None:
        """The best one's children come next."""
        proposed = self._proposed.pop(sequence_id)
        if score > self._best_score:
            self._best, self._best_score = proposed, score


def climb(counts: Sequence[int], seed: int) -> Climb:
    """For ``--sampler compared_strategy:climb``."""
    return Climb(counts, seed)
