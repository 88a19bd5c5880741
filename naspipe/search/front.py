"""The accuracy/cost front: subnets that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar


class Point(NamedTuple):
    """A subnet's score (higher is better) and cost (lower is better)."""

    score: float
    cost: float


P = TypeVar("P")


def pareto_front(points: Sequence[tuple[P, Point]]) -> list[tuple[P, Point]]:
    """Those that no other point dominates, the cheapest first; of equal points, the first.

    A point is dominated by one that is no worse in both score and cost and better in one.
    Points whose score or cost is not a number are left out.
    """
    found: list[tuple[P, Point]] = []
    sound = [pair for pair in points if not any(map(math.isnan, pair[1]))]
    for subject, point in sorted(sound, key=lambda pair: (pair[1].cost, -pair[1].score)):
        if not found or point.score > found[-1][1].score:
            found.append((subject, point))
    return found
