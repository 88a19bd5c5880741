"""Combines one path of each block within limits, exactly minimizing the sum of scores.

    block 0: (0,) 0.5 at 4, (1,) 0.2 at 9     block 1: (0,) 0.6 at 3, (1,) 0.1 at 8
    limit 17: 0.3 at 17      limit 13: 0.6 at 12      limit 11: 1.1 at 7      limit 6: none

All numbers are converted to integers first, so no sum is rounded. Combinations grow block by block.
Of two partial combinations of the same blocks, one is dropped if it is no better in the score and
no cheaper in any cost. A partial combination is also dropped if its lower bound, with the limits
priced, is not below a known combination.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from naspipe.config.errors import ConfigError

FINE = 1 << 40
"""Prices are integer multiples of this fraction of a unit of the score."""

_ROUNDS = 300
"""Number of rounds in which the prices of exceeded limits are raised and the others lowered."""


class Part(NamedTuple):
    """Paths of one or several blocks, in integers; the sort order is the order of preference."""

    score: int
    places: tuple[int, ...]
    costs: tuple[int, ...]

    def and_then(self, other: Part) -> Part:
        costs = tuple(map(int.__add__, self.costs, other.costs))
        return Part(self.score + other.score, (*self.places, *other.places), costs)


def price_limits(
    blocks: Sequence[Sequence[Part]], most: Sequence[int]
) -> tuple[tuple[int, ...], Part | None]:
    """Compute the prices of limits by subgradients; deterministic for given parts.

    Returns the price of a unit of each cost, in fractions of a unit of the score (:data:`FINE`),
    and a combination within the limits, if one was found.
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
        priced = [score + cost @ prices for score, cost in zip(scores, costs, strict=True)]
        chosen = [int(each.argmin()) for each in priced]
        paid = sum(float(each[at]) for each, at in zip(priced, chosen, strict=True))
        bound = paid - float(prices.sum())
        own = (each[at] for each, at in zip(costs, chosen, strict=True))
        excess = sum(own, -np.ones_like(prices))  # amounts by which the limits are exceeded
        parts = (options[at] for options, at in zip(blocks, chosen, strict=True))
        joined = reduce(Part.and_then, parts)
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
    return tuple(whole), known


_WIDTHS = (30, 300, 3000)
"""Numbers of partial combinations kept in the first attempts, which find combinations to compare
with."""


class RatedPath(NamedTuple):
    """A path of a block."""

    choices: tuple[int, ...]
    score: float
    """Lower is better."""
    costs: Mapping[str, float]


class Combination(NamedTuple):
    """One path of each block."""

    choices: tuple[tuple[int, ...], ...]
    score: float
    """The sum over the blocks; each cost is a sum as well."""
    costs: Mapping[str, float]


def combine(
    blocks: Sequence[Sequence[RatedPath]], limits: Mapping[str, float] | None = None
) -> Combination:
    """Return the combination with the lowest sum of scores whose costs are within the limits.

    The result is exact and does not depend on the order of the paths. Among equal sums, the one
    with the lowest choices is returned, compared from the first block on. Paths without a score, or
    without a limited cost, are ignored.

    Args:
        blocks: the paths of each block.
        limits: the maximum sum of each named cost.

    Raises:
        ConfigError: if no combination is within the limits; the message names the cheapest one.
    """
    limits = limits or {}
    names = sorted(limits)
    kept = [_known(number, paths, names) for number, paths in enumerate(blocks)]
    scores, _ = _whole([[path.score for path in paths] for paths in kept])
    costs, most = [], []
    for name in names:
        whole, parts = _whole([[path.costs[name] for path in paths] for paths in kept])
        costs.append(whole)
        most.append(math.floor(Fraction(limits[name]) * parts))
    options = [
        [
            Part(scores[number][place], (place,), tuple(cost[number][place] for cost in costs))
            for place in range(len(paths))
        ]
        for number, paths in enumerate(kept)
    ]
    growth = _Growth([_undominated(each) for each in options], most)
    for width in _WIDTHS:
        growth.known = growth.best(width) or growth.known
    found = growth.best()
    if found is None:
        raise ConfigError(_nothing_fits(kept, limits))
    return _joined([paths[place] for paths, place in zip(kept, found.places, strict=True)])


def _known(number: int, paths: Sequence[RatedPath], names: Sequence[str]) -> list[RatedPath]:
    """Return the paths with known score and costs, ordered by choices, without duplicates."""
    unique: dict[tuple[int, ...], RatedPath] = {}
    for path in sorted(paths, key=lambda each: (each.choices, each.score)):
        values = (path.score, *(path.costs.get(name, math.nan) for name in names))
        if all(map(math.isfinite, values)):
            unique.setdefault(path.choices, path)
    if not unique:
        raise ConfigError(
            f"combination: expected paths of block {number} with "
            f"{' and '.join(('a score', *names))}, found none among {len(paths)}"
        )
    return list(unique.values())


def _whole(rows: Sequence[Sequence[float]]) -> tuple[list[list[int]], int]:
    """Return the numbers as integer multiples of a common unit, and the inverse of that unit."""
    exact = [[Fraction(value) for value in row] for row in rows]
    parts = max(value.denominator for row in exact for value in row)  # powers of two
    return [[int(value * parts) for value in row] for row in exact], parts


class _Growth:
    """Combinations within the limits, built block by block."""

    def __init__(self, blocks: Sequence[Sequence[Part]], most: Sequence[int]) -> None:
        self._most = most
        self._prices, self.known = price_limits(blocks, most)
        self._blocks = [sorted((self._priced(part), part) for part in parts) for parts in blocks]
        self._least = _behind([options[0][0]] for options in self._blocks)
        self._needed = _behind(
            [min(part.costs[number] for part in parts) for number in range(len(most))]
            for parts in blocks
        )

    def _priced(self, part: Part) -> int:
        paid = sum(map(int.__mul__, self._prices, part.costs))
        return part.score * FINE + paid

    def best(self, width: int | None = None) -> Part | None:
        """Return the best combination found; keep at most ``width`` partial ones per block."""
        worst = math.inf
        if self.known is not None:
            worst = self.known.score * FINE + sum(map(int.__mul__, self._prices, self._most))
        front = [Part(0, (), (0,) * len(self._most))]
        for options, least, needed in zip(
            self._blocks, self._least[1:], self._needed[1:], strict=True
        ):
            left = [most - least for most, least in zip(self._most, needed, strict=True)]
            grown = []
            for part in front:
                bound = worst - self._priced(part) - least[0]
                for price, option in options:
                    if price > bound:
                        break
                    together = part.and_then(option)
                    if all(map(int.__le__, together.costs, left)):
                        grown.append(together)
            if width is not None:
                grown = sorted(grown, key=lambda part: (self._priced(part), part))[:width]
            front = _undominated(grown)
        return min(front, default=None)


def _behind(blocks: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return, for each position in a row of blocks, the sums from there on; the last ones are 0."""
    rows = [list(each) for each in blocks]
    nothing = [0] * len(rows[0])
    add = lambda one, other: [a + b for a, b in zip(one, other, strict=True)]  # noqa: E731
    return [*accumulate(reversed(rows), add, initial=nothing)][::-1]


def _undominated(parts: Sequence[Part]) -> list[Part]:
    """Return the parts for which no better one is as cheap in every cost, the best first."""
    found: list[Part] = []
    cheapest: list[tuple[int, ...]] = []
    for part in sorted(parts):
        if any(all(map(int.__le__, costs, part.costs)) for costs in cheapest):
            continue
        cheapest = [c for c in cheapest if not all(map(int.__le__, part.costs, c))]
        cheapest.append(part.costs)
        found.append(part)
    return found


def _joined(paths: Sequence[RatedPath]) -> Combination:
    names = sorted(set.intersection(*(set(path.costs) for path in paths)))
    return Combination(
        tuple(path.choices for path in paths),
        math.fsum(path.score for path in paths),
        {name: math.fsum(path.costs[name] for path in paths) for name in names},
    )


def _nothing_fits(blocks: Sequence[Sequence[RatedPath]], limits: Mapping[str, float]) -> str:
    """Return a message about limits that cannot be met individually, or else about all of them."""
    said = []
    for name in sorted(limits):
        cheapest = _joined(
            [min(paths, key=lambda path: (path.costs[name], path.choices)) for paths in blocks]
        )
        said.append((name, cheapest))
    too_dear = [each for each in said if each[1].costs[each[0]] > limits[each[0]]]
    found = []
    for name, cheapest in too_dear or said:  # choices in the format of ``naspipe export --subnet``
        text = ";".join(",".join(map(str, each)) for each in cheapest.choices)
        found.append(f"{cheapest.costs[name]:g} {name} ({text})")
    asked = " and ".join(f"{limits[name]:g} {name}" for name, _ in too_dear or said)
    together = "" if too_dear else ", but not together"
    return (
        f"combination: expected one within {asked}, found the cheapest at {' and '.join(found)}"
        f"{together}; raise the limits"
    )
