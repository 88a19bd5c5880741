"""What limits are worth: prices of costs, and good combinations found on the way to them.

With a price for each unit of a cost, every block chooses alone. The sum of what they choose, less
the price of the limits, is never above the best combination that keeps the limits (Lagrange). The
prices here make it nearly as high as it can be. Any would do: they decide how fast the best
combination is found, never which one it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

FINE = 1 << 40
"""Prices are whole multiples of one part in so many of a unit of the score."""

_ROUNDS = 300
"""Of raising the prices of limits that are exceeded and lowering the others."""


class Part(NamedTuple):
    """Paths of one block or of several, in whole numbers; sorts as combinations are preferred."""

    score: int
    places: tuple[int, ...]
    """Of each block's path."""
    costs: tuple[int, ...]

    def and_then(self, other: Part) -> Part:
        """Both together."""
        costs = tuple(map(int.__add__, self.costs, other.costs))
        return Part(self.score + other.score, (*self.places, *other.places), costs)


class Priced(NamedTuple):
    """What is known before combinations are looked at one after the other."""

    prices: tuple[int, ...]
    """Of a unit of each cost, in parts of a unit of the score (:data:`FINE`)."""
    known: Part | None
    """A combination that keeps the limits."""


def price_limits(blocks: Sequence[Sequence[Part]], most: Sequence[int]) -> Priced:
    """Prices by subgradients, the same for the same parts.

    Args:
        blocks: the paths of each.
        most: what their costs may sum up to.
    """
    top = max(abs(part.score) for parts in blocks for part in parts) or 1
    room = [max(limit, 1) for limit in most]
    scores = [np.array([part.score / top for part in parts]) for parts in blocks]
    costs = [
        np.array([[c / r for c, r in zip(part.costs, room, strict=True)] for part in parts])
        for parts in blocks
    ]
    best, known = np.zeros(len(most)), None
    highest, prices, pace = -np.inf, best, 1.0
    spread = sum(float(np.ptp(each)) for each in scores)
    for number in range(_ROUNDS):
        bound, chosen, excess = _choose(scores, costs, prices)
        joined = _joined_parts([options[at] for options, at in zip(blocks, chosen, strict=True)])
        if all(map(int.__le__, joined.costs, most)):
            known = min(filter(None, (known, joined)))
        if bound > highest:
            highest, best = bound, prices
        elif number % 10 == 9:
            pace /= 2
        goal = highest + spread if known is None else known.score / top
        slope = float(excess @ excess)
        if not slope or goal <= bound:
            break
        prices = np.maximum(prices + pace * (goal - bound) / slope * excess, 0.0)
    whole = (
        int(Fraction(float(price)) * top * FINE / limit)
        for price, limit in zip(best, room, strict=True)
    )
    return Priced(tuple(whole), known)


def _choose(
    scores: Sequence[np.ndarray], costs: Sequence[np.ndarray], prices: np.ndarray
) -> tuple[float, list[int], np.ndarray]:
    """The bound that prices give, what the blocks choose, and how far that exceeds the limits."""
    priced = [score + cost @ prices for score, cost in zip(scores, costs, strict=True)]
    chosen = [int(each.argmin()) for each in priced]
    paid = sum(float(each[at]) for each, at in zip(priced, chosen, strict=True))
    excess = sum((each[at] for each, at in zip(costs, chosen, strict=True)), -np.ones_like(prices))
    return paid - float(prices.sum()), chosen, excess


def _joined_parts(parts: Sequence[Part]) -> Part:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.and_then(part)
    return whole
