"""GreedyNAS's candidate pool: train the paths that did well more often than others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from naspipe.config.errors import ConfigError
from naspipe.search.random_search import Allowed, Choices, RandomSearch, Scored


class GreedyPool(RandomSearch):
    """Greedy path filtering (You et al., CVPR'20): draws from a bounded pool of good paths.

    The scores of every ``group`` subnets that follow one another are compared, and the best
    ``keep`` of them go into the pool, which holds the ``size`` best paths by their newest scores.
    A subnet is drawn from the pool, all its paths alike, with a probability that rises
    linearly from 0 to ``greed`` over the first ``growth`` subnets, and uniformly otherwise.

    The paper scores each group's paths on a small validation batch and trains those that it keeps
    alone. Here every path is trained, and its score is what the run says of it: where the stream
    drives a training, minus the loss of its step, on its own batch. So filtering acts through
    the pool only, and scores carry the noise of batches; comparing neighbours alone keeps the
    fall of the losses out of it.

    Args:
        candidate_counts: of each choice block.
        seed: of every draw.
        is_allowed: the limits.
        size: paths in the pool (1,000 in the paper).
        group: subnets that are compared (10).
        keep: of them, those that go into the pool (5).
        greed: the greatest probability to draw from the pool (0.8).
        growth: subnets until then.
    """

    def __init__(
        self,
        candidate_counts: Sequence[int],
        seed: int,
        is_allowed: Allowed = lambda choices: True,
        *,
        size: int = 1000,
        group: int = 10,
        keep: int = 5,
        greed: float = 0.8,
        growth: int = 1000,
    ) -> None:
        super().__init__(candidate_counts, seed, is_allowed)
        if not (1 <= keep <= group and size >= 1 and growth >= 1 and 0 <= greed <= 1):
            raise ConfigError(
                f"greedy: expected 1 <= keep <= group, size and growth of 1 or more and greed from "
                f"0 to 1, found keep {keep}, group {group}, size {size}, growth {growth}, greed "
                f"{greed}"
            )
        self._size, self._group, self._keep = size, group, keep
        self._greed, self._growth = greed, growth
        self._proposed: dict[int, Choices] = {}
        self._waiting: list[Scored] = []
        self._pool: dict[Choices, float] = {}
        """Paths and scores, the path that came in last at the end."""

    @property
    def pool(self) -> list[Scored]:
        """The good paths, the best first; of equal ones, the newest."""
        newest_first = [Scored(*item) for item in reversed(self._pool.items())]
        return sorted(newest_first, key=lambda scored: -scored.score)

    def propose(self, sequence_id: int) -> Choices:
        """See :class:`ExplorationStrategy`; raises as :meth:`RandomSearch.propose`."""
        chance = self._greed * min(1.0, sequence_id / self._growth)
        is_greedy = self.random.random_sample() < chance and self._pool
        choices = self._from_pool() if is_greedy else self.first_allowed(self.draw)
        self._proposed[sequence_id] = choices
        return choices

    def observe(self, sequence_id: int, score: float) -> None:
        """The best of each group join the pool; the worst of the pool leave once it is full."""
        known = -math.inf if math.isnan(score) else score
        self._waiting.append(Scored(self._proposed.pop(sequence_id), known))
        if len(self._waiting) == self._group:
            ranked = sorted(self._waiting, key=lambda scored: -scored.score)
            self._waiting = []
            for choices, value in reversed(ranked[: self._keep]):
                self._pool.pop(choices, None)
                self._pool[choices] = value
            for worst in self.pool[self._size :]:
                del self._pool[worst.choices]

    def _from_pool(self) -> Choices:
        """Any path of the pool."""
        return list(self._pool)[self.random.randint(len(self._pool))]
