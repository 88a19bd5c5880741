"""Scores of subnets, sums of standard scores, and the similarity of two rankings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from naspipe.config.errors import ConfigError

JUDGED = ("loss", "top1", "top5", "bleu")
"""Scores of subnets that are evaluated with the weights of a run."""

PROXIES = ("synflow", "naswot")
"""Scores of subnets that are evaluated with the initial weights of their layers: zero-cost
proxies."""

SCORES = (*JUDGED, *PROXIES)
"""Scores that can rank subnets; sums of them, such as ``loss+naswot``, can too."""


class Sums(NamedTuple):
    """Sums over validation batches, in 64 bits, added in the order of the batches."""

    loss: float
    """The sum of the losses of all targets."""
    targets: float
    """Number of targets, without padding."""
    ranked: float
    """Number of targets that are one of the classes scored by the outputs; 0 if there are no
    classes."""
    top1: float
    """Number of ranked targets whose class scores highest."""
    top5: float
    """Number of ranked targets whose class is among the five highest."""


class Scores(NamedTuple):
    """The scores of one subnet. Scores that do not apply are NaN; NaNs compare equal."""

    loss: float
    """Mean over the targets, which are images or tokens."""
    top1: float
    top5: float
    bleu: float = math.nan
    synflow: float = math.nan
    naswot: float = math.nan
    combined: float = math.nan
    """The sum of standard scores."""

    def of(self, score: str) -> float:
        """Return the value of a score by its name, or of a sum of scores."""
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
    """Compute means from sums."""
    loss, targets, ranked, top1, top5 = sums
    if not targets:
        raise ConfigError("validation: expected batches with targets, found only padding")
    if not ranked:
        return Scores(loss / targets, math.nan, math.nan)
    return Scores(loss / targets, top1 / ranked, top5 / ranked)


def told_merit(scores: Scores, score: str) -> float:
    """Return the merit of an evaluated subnet that is reported to a strategy; higher is better."""
    value = merit(scores, score)
    if any(each in ("top1", "top5") and math.isnan(scores.of(each)) for each in parts_of(score)):
        raise ConfigError(
            f"score {score}: expected outputs that score classes, and whole numbers of classes in "
            f"the field that the loss is a mean over, found other ones; put 'target' into the "
            f"run's loss_fields, whether or not the loss uses it, or rank by the loss"
        )
    return value


def merit(scores: Scores, score: str) -> float:
    """Return the merit that is reported to a strategy; higher is better."""
    check_score(score)
    value = scores.of(score)
    return -value if score == "loss" else value


def parts_of(score: str) -> tuple[str, ...]:
    """Return the scores that are summed; the score itself if it is not a sum."""
    return tuple(score.split("+"))


def is_score(score: object) -> bool:
    """Return True if a value is the name of a score, or a sum of different scores without BLEU."""
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
"""Number of subnets that scores are standardized with: the first ones of the strategy
``random``."""


class Spread(NamedTuple):
    """The distribution of the merits of the subnets in a sample."""

    mean: float
    deviation: float
    """The population standard deviation, above 0."""


class StandardScores:
    """Adds up the standard scores of each part of a sum of scores."""

    def __init__(self, spreads: Mapping[str, Spread]) -> None:
        self._spreads = spreads

    @classmethod
    def of_sample(cls, score: str, sample: Sequence[Scores]) -> StandardScores:
        """Create from the scores of a sample; infinite and NaN values are ignored.

        Raises:
            ConfigError: if a part is the same for the whole sample, so that it ranks nothing.
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
        """Return the same scores with their sum, which is NaN if a part is."""
        parts = [
            (merit(scores, part) - spread.mean) / spread.deviation
            for part, spread in self._spreads.items()
        ]
        return scores._replace(combined=sum(parts))

    def as_dict(self) -> dict[str, Any]:
        return {part: spread._asdict() for part, spread in self._spreads.items()}


RESAMPLES = 2000


def kendalls_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Return tau-b, from -1 to 1; 0 if either ranking is constant (Kendall 1945)."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(one, other).statistic)
    return 0.0 if math.isnan(tau) else tau


def interval(
    one: Sequence[float], other: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the bootstrap interval that contains ``level`` of the taus of resampled pairs."""
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
