"""What a subnet is judged by: loss and hit rates over the validation batches, as sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from naspipe.core.errors import ConfigError

SCORES = ("loss", "top1", "top5", "bleu")
"""By which subnets can be ranked."""


class Sums(NamedTuple):
    """Sums over validation batches, in 64 bits, in the order of the batches."""

    loss: float
    """Of every target's loss."""
    targets: float
    """How many they are; padding is none."""
    ranked: float
    """Targets that are one of the classes that the outputs score; 0 where there are no classes."""
    top1: float
    """Ranked targets whose class scores highest."""
    top5: float
    """Ranked targets whose class is among the five highest."""


class Scores(NamedTuple):
    """How one subnet does. What does not apply is NaN, and equals another NaN."""

    loss: float
    """Mean over the targets: images, or tokens."""
    top1: float
    top5: float
    bleu: float = math.nan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self._comparable() == other._comparable()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._comparable())

    def _comparable(self) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(each) else each for each in self)


def scores_of(sums: Sequence[float]) -> Scores:
    """Means from sums.

    Raises:
        ConfigError: when the validation batches hold no target.
    """
    loss, targets, ranked, top1, top5 = sums
    if not targets:
        raise ConfigError("validation: expected batches with targets, found only padding")
    if not ranked:
        return Scores(loss / targets, math.nan, math.nan)
    return Scores(loss / targets, top1 / ranked, top5 / ranked)


def told_merit(scores: Scores, score: str) -> float:
    """What a strategy is told of a subnet that was judged: more is better.

    Raises:
        ConfigError: when subnets have no such score.
    """
    value = merit(scores, score)
    if score in ("top1", "top5") and math.isnan(value):
        raise ConfigError(
            f"score {score}: expected outputs that score classes, and whole numbers of classes in "
            f"the field that the loss is a mean over, found other ones; put 'target' into the "
            f"run's loss_fields, whether or not the loss uses it, or rank by the loss"
        )
    return value


def merit(scores: Scores, score: str) -> float:
    """What a strategy is told: more is better.

    Raises:
        ConfigError: when the subnets have no such score.
    """
    if score not in SCORES:
        raise ConfigError(f"unknown score {score!r:.80}: expected {' or '.join(SCORES)}")
    value = float(getattr(scores, score))
    return -value if score == "loss" else value
