"""Adaptive streams: an exploration strategy that learns from scores, with a fixed delay.

The strategy is told scores in sequence order, and always the same ones before it proposes a
given subnet, so it proposes the same stream on any number of stages.
"""

from __future__ import annotations

from naspipe.core.errors import ConfigError, InvariantError
from naspipe.streams.ports import ExplorationStrategy


class FeedbackLoop:
    """Turns scores that come in any order into the next subnets.

    Subnet y is proposed once the scores of all subnets <= y - 1 - ``delay`` were observed, and
    none of later ones; at most ``delay`` + 1 subnets are then under way. A strategy that waits
    for more scores is given them one at a time.

    Args:
        strategy: what proposes.
        delay: in subnets; part of a run's definition.
        num_subnets: in all.
    """

    def __init__(self, strategy: ExplorationStrategy, delay: int, num_subnets: int) -> None:
        if delay < 0:
            raise ConfigError(f"feedback delay: expected 0 or more subnets, found {delay}")
        self._strategy = strategy
        self._delay = delay
        self._num_subnets = num_subnets
        self._proposed = 0
        self._observed = 0
        self._waiting: dict[int, float] = {}

    @property
    def is_finished(self) -> bool:
        """Whether every subnet was proposed and every score observed."""
        return self._observed == self._num_subnets

    def start(self) -> list[tuple[int, ...]]:
        """The subnets that need no score."""
        return self._propose()

    def take(self, sequence_id: int, score: float) -> list[tuple[int, ...]]:
        """A score is known; returns the subnets that can be proposed now, next ones in order.

        Raises:
            InvariantError: when the subnet was not proposed, or its score was told before.
        """
        is_new = self._observed <= sequence_id < self._proposed
        if not is_new or sequence_id in self._waiting:
            raise InvariantError(
                f"score of subnet {sequence_id}: expected one of {self._observed} to "
                f"{self._proposed - 1} that was not told yet"
            )
        self._waiting[sequence_id] = score
        found: list[tuple[int, ...]] = []
        while self._observed in self._waiting:
            observed = self._observed
            self._strategy.observe(observed, self._waiting.pop(observed))
            self._observed += 1
            found += self._propose()
        return found

    def _propose(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        while self._proposed < min(self._num_subnets, self._observed + self._delay + 1):
            subnet = self._strategy.propose(self._proposed)
            if subnet is None:
                self._check_waiting()
                break
            found.append(tuple(subnet))
            self._proposed += 1
        return found

    def _check_waiting(self) -> None:
        if self._observed == self._proposed:
            raise ConfigError(
                f"strategy {type(self._strategy).__name__}: expected subnet {self._proposed} of "
                f"{self._num_subnets}, found it waiting although it was told every score"
            )
