"""Which of several stages does which piece of work, where any may do any of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import ceil
from typing import NamedTuple

MOST_TRIED = 1 << 16
"""Ways of dealing pieces that are looked at one by one; above, better ones are looked for."""

NEAR = 0.002
"""Part of a stage's mean load within which two ways are as well balanced as each other."""


class Link(NamedTuple):
    """What one piece hands to another, if they are on different stages."""

    source: int
    sink: int
    num_bytes: int


def pack(costs: Sequence[float], links: Sequence[Link], num_stages: int) -> tuple[int, ...]:
    """The stage of each piece: the dearest stage as cheap as can be, then the fewest bytes moved.

    Every way is tried where there are few. Otherwise the dearest piece goes to the cheapest stage
    first, and pieces are then moved and exchanged for as long as that makes it better.

    Args:
        costs: of each piece, in any unit.
        links: between pieces, by their places.
        num_stages: 1 or more, and not more than there are pieces.
    """
    grain = NEAR * sum(costs) / num_stages or 1.0

    def badness(dealt: Sequence[int]) -> tuple[int, int, float, tuple[int, ...]]:
        loads = [0.0] * num_stages
        for cost, stage in zip(costs, dealt, strict=True):
            loads[stage] += cost
        moved = sum(each.num_bytes for each in links if dealt[each.source] != dealt[each.sink])
        return ceil(max(loads) / grain), moved, max(loads), tuple(dealt)

    if num_stages ** len(costs) <= MOST_TRIED:
        ways = _dealt(len(costs), num_stages)
        return _numbered(min(ways, key=badness))
    best = _dearest_first(costs, num_stages)
    while (better := min(_neighbours(best, num_stages), key=badness)) and (
        badness(better)[:3] < badness(best)[:3]
    ):
        best = better
    return _numbered(best)


def _dealt(count: int, num_stages: int) -> Iterator[list[int]]:
    """Every way that differs in more than the names of stages."""
    if not count:
        yield []
        return
    for before in _dealt(count - 1, num_stages):
        for stage in range(min(max(before, default=-1) + 2, num_stages)):
            yield [*before, stage]


def _dearest_first(costs: Sequence[float], num_stages: int) -> list[int]:
    loads, dealt = [0.0] * num_stages, [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
        dealt[piece] = loads.index(min(loads))
        loads[dealt[piece]] += costs[piece]
    return dealt


def _neighbours(dealt: list[int], num_stages: int) -> Iterator[list[int]]:
    for piece, own in enumerate(dealt):
        for stage in range(num_stages):
            if stage != own:
                yield [*dealt[:piece], stage, *dealt[piece + 1 :]]
    for one, other in combinations(range(len(dealt)), 2):
        if dealt[one] != dealt[other]:
            changed = list(dealt)
            changed[one], changed[other] = dealt[other], dealt[one]
            yield changed


def _numbered(dealt: Sequence[int]) -> tuple[int, ...]:
    """Stages numbered by the first piece of each."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(stage, len(names)) for stage in dealt)
