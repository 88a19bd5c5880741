"""What a subnet is judged by: scores, sums of standard scores, and how alike two rankings are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from naspipe.config.errors import ConfigError

JUDGED = ("loss", "top1", "top5", "bleu")
"""Scores of subnets with the weights that a run left."""

PROXIES = ("synflow", "naswot")
"""Scores of subnets with the weights that their layers begin with: zero-cost proxies."""

SCORES = (*JUDGED, *PROXIES)
"""Scores that rank subnets; so do sums of them, such as ``loss+naswot``."""


class Sums(NamedTuple):
    """Sums over validation batches, in 64 bits, in the order of the batches."""

    loss: float
    """The sum of the losses of all targets."""
    targets: float
    """Number of targets, without padding."""
    ranked: float
    """Targets that are one of the classes that the outputs score; 0 if there are no classes."""
    top1: float
    """Ranked targets whose class scores highest."""
    top5: float
    """Ranked targets whose class is among the five highest."""


class Scores(NamedTuple):
    """The scores of one subnet. What does not apply is NaN, and equals another NaN."""

    loss: float
    """Mean over the targets, which are images or tokens."""
    top1: float
    top5: float
    bleu: float = math.nan
    synflow: float = math.nan
    naswot: float = math.nan
    combined: float = math.nan
    """A sum of standard scores."""

    def of(self, score: str) -> float:
        """The value of a score by its name, or of a sum of scores."""
        return float(getattr(self, "combined" if "+" in score else score))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self._comparable() == other._comparable()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._comparable())

    def _comparable(self) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(each) else each for each in self)


def scores_of(sums: Sequence[float]) -> Scores:
    """Means from sums."""
    loss, targets, ranked, top1, top5 = sums
    if not targets:
        raise ConfigError("validation: expected batches with targets, found only padding")
    if not ranked:
        return Scores(loss / targets, math.nan, math.nan)
    return Scores(loss / targets, top1 / ranked, top5 / ranked)


def told_merit(scores: Scores, score: str) -> float:
    """What a strategy is told of a subnet that was judged: more is better."""
    value = merit(scores, score)
    if any(each in ("top1", "top5") and math.isnan(scores.of(each)) for each in parts_of(score)):
        raise ConfigError(
            f"score {score}: expected outputs that score classes, and whole numbers of classes in "
            f"the field that the loss is a mean over, found other ones; put 'target' into the "
            f"run's loss_fields, whether or not the loss uses it, or rank by the loss"
        )
    return value


def merit(scores: Scores, score: str) -> float:
    """What a strategy is told: more is better."""
    check_score(score)
    value = scores.of(score)
    return -value if score == "loss" else value


def parts_of(score: str) -> tuple[str, ...]:
    """The scores that a score is the sum of; the score itself if it is no sum."""
    return tuple(score.split("+"))


def is_score(score: object) -> bool:
    """Whether a value is the name of a score, or a sum of different scores without BLEU."""
    if not isinstance(score, str):
        return False
    parts = parts_of(score)
    is_sum = len(parts) > 1
    return (
        set(parts) <= set(SCORES)
        and len(set(parts)) == len(parts)
        and not (is_sum and "bleu" in parts)
    )


def check_score(score: str) -> None:
    """Raise ConfigError if ``score`` is not a score."""
    if not is_score(score):
        raise ConfigError(
            f"unknown score {score!r:.80}: expected {' or '.join(SCORES)}, or a sum of different "
            f"ones without bleu, as in loss+naswot"
        )


SAMPLE = 32
"""Number of subnets that scores are compared with: the first ones of the strategy ``random``."""


class Spread(NamedTuple):
    """The distribution of the merits of a sample's subnets."""

    mean: float
    deviation: float
    """The population's, above 0."""


class StandardScores:
    """Adds up the standard scores of each part of a sum of scores."""

    def __init__(self, spreads: Mapping[str, Spread]) -> None:
        self._spreads = spreads

    @classmethod
    def of_sample(cls, score: str, sample: Sequence[Scores]) -> StandardScores:
        """From the scores of a sample; values that are infinite or no numbers are left out.

        Raises:
            ConfigError: when a part is the same for all of the sample, so that it ranks nothing.
        """
        spreads = {}
        for part in parts_of(score):
            merits = (merit(scores, part) for scores in sample)
            values = [each for each in merits if math.isfinite(each)]
            if len(set(values)) < 2:
                found = f"{values[0]:.6g} for each" if values else "none"
                raise ConfigError(
                    f"score {score}: expected {part} to differ among {len(sample)} subnets drawn "
                    f"at random, found {found}; leave {part} out of the sum"
                )
            spreads[part] = Spread(statistics.fmean(values), statistics.pstdev(values))
        return cls(spreads)

    def added(self, scores: Scores) -> Scores:
        """The same scores with their sum, which is NaN if a part is."""
        parts = [
            (merit(scores, part) - spread.mean) / spread.deviation
            for part, spread in self._spreads.items()
        ]
        return scores._replace(combined=sum(parts))

    def as_dict(self) -> dict[str, Any]:
        return {part: spread._asdict() for part, spread in self._spreads.items()}


RESAMPLES = 2000


def kendalls_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Tau-b, from -1 to 1; 0 where either has no order at all (Kendall 1945)."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(one, other).statistic)
    return 0.0 if math.isnan(tau) else tau


def interval(
    one: Sequence[float], other: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval that holds ``level`` of the taus of pairs drawn anew from these."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (one, other),
        kendalls_tau,
        paired=True,
        vectorized=False,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
