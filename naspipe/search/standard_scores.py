"""Sums of unlike scores: each is measured in standard deviations of a fixed sample of subnets.

The sample is drawn before the search, from the search's seed. So what a subnet scores depends on
the sample and on itself, and on no other subnet of the search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.search.scores import Scores, merit, parts_of

SAMPLE = 32
"""Subnets that scores are compared with: the first ones of the strategy ``random``."""


class Spread(NamedTuple):
    """Of the merits of a sample's subnets: more is better."""

    mean: float
    deviation: float
    """The population's, above 0."""

    def of(self, value: float) -> float:
        """A merit as a standard score."""
        return (value - self.mean) / self.deviation


class StandardScores:
    """Adds up the standard scores of each part of a sum of scores.

    Args:
        score: the sum, as in ``loss+naswot``.
        spreads: of each part.
    """

    def __init__(self, score: str, spreads: Mapping[str, Spread]) -> None:
        self._score = score
        self._spreads = spreads

    @classmethod
    def of_sample(cls, score: str, sample: Sequence[Scores]) -> StandardScores:
        """From the scores of a sample; values that are infinite or no numbers are left out.

        Raises:
            ConfigError: when a part is the same for all of the sample, so that it ranks nothing.
        """
        return cls(score, {part: _spread(score, part, sample) for part in parts_of(score)})

    def added(self, scores: Scores) -> Scores:
        """The same scores with their sum; it is NaN where a part is."""
        parts = [spread.of(merit(scores, part)) for part, spread in self._spreads.items()]
        return scores._replace(combined=sum(parts))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {part: spread._asdict() for part, spread in self._spreads.items()}


def _spread(score: str, part: str, sample: Sequence[Scores]) -> Spread:
    values = [each for each in (merit(scores, part) for scores in sample) if math.isfinite(each)]
    if len(set(values)) < 2:
        found = f"{values[0]:.6g} for each" if values else "none"
        raise ConfigError(
            f"score {score}: expected {part} to differ among {len(sample)} subnets drawn at "
            f"random, found {found}; leave {part} out of the sum"
        )
    return Spread(statistics.fmean(values), statistics.pstdev(values))
