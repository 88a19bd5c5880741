"""Uniform draws within limits, which every other strategy starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from numpy.random import RandomState

from naspipe.config.errors import ConfigError

Choices = tuple[int, ...]
"""One choice per choice block."""

Allowed = Callable[[Choices], bool]
"""Whether a subnet keeps the limits (FLOPs, parameters, latency)."""

_TRIES = 10_000
"""Subnets to draw before the limits are called impossible."""


class Scored(NamedTuple):
    """A subnet and how it did; a higher score is better."""

    choices: Choices
    score: float


class RandomSearch:
    """Uniform draws among the subnets that keep the limits.

    Args:
        candidate_counts: of each choice block.
        seed: of the draws.
        is_allowed: the limits.
    """

    def __init__(
        self,
        candidate_counts: Sequence[int],
        seed: int,
        is_allowed: Allowed = lambda choices: True,
    ) -> None:
        self.counts = tuple(candidate_counts)
        self.random = RandomState(seed)
        self._is_allowed = is_allowed

    def propose(self, sequence_id: int) -> Choices:
        """See :class:`ExplorationStrategy`.

        Raises:
            ConfigError: when no subnet that keeps the limits was found.
        """
        return self.first_allowed(self.draw)

    def observe(self, sequence_id: int, score: float) -> None:
        """Nothing is learnt."""

    def draw(self) -> Choices:
        """Any subnet."""
        return tuple(int(self.random.randint(count)) for count in self.counts)

    def first_allowed(self, draw: Callable[[], Choices]) -> Choices:
        """The first draw that keeps the limits.

        Raises:
            ConfigError: when there was none.
        """
        for _ in range(_TRIES):
            choices = draw()
            if self._is_allowed(choices):
                return choices
        raise ConfigError(
            f"no subnet within the limits among {_TRIES} draws; raise flops, params or latency_ms "
            f"of the limits (--max-flops, --max-params, --max-latency-ms)"
        )
