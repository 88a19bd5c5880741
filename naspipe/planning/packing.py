"""Which of several stages does which piece of work, where any may do any of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

MOST_STEPS = 200_000
"""Of a search through all ways; what was found by then is taken."""

NEAR = 0.002
"""Part of the least peak that is given up to move less."""


class Link(NamedTuple):
    """What one piece hands to another, if they are on different stages."""

    source: int
    sink: int
    num_bytes: int


def pack(costs: Sequence[float], links: Sequence[Link], num_stages: int) -> tuple[int, ...]:
    """The stage of each piece: the dearest stage as cheap as can be, then the fewest bytes moved.

    The dearest piece goes to the cheapest stage first; pieces are then moved and exchanged for as
    long as that makes it better. From there all ways are gone through that may be better yet, up to
    :data:`MOST_STEPS`; so the answer for some 12 pieces is the best there is.

    Args:
        costs: of each piece, in any unit.
        links: between pieces, by their places.
        num_stages: 1 or more.
    """
    problem = _Problem(tuple(costs), tuple(links), num_stages)
    dealt = problem.improved(_dearest_first(costs, num_stages))
    dealt = problem.searched(dealt)
    limit = problem.peak(dealt) * (1 + NEAR)
    dealt = problem.improved(dealt, limit)
    return _numbered(problem.searched(dealt, limit))


class _Problem(NamedTuple):
    costs: tuple[float, ...]
    links: tuple[Link, ...]
    num_stages: int

    def peak(self, dealt: Sequence[int]) -> float:
        """Of the dearest stage."""
        loads = [0.0] * self.num_stages
        for cost, stage in zip(self.costs, dealt, strict=True):
            loads[stage] += cost
        return max(loads)

    def moved(self, dealt: Sequence[int]) -> int:
        """Bytes that go from stage to stage."""
        return sum(each.num_bytes for each in self.links if dealt[each.source] != dealt[each.sink])

    def improved(self, dealt: list[int], limit: float = 0.0) -> list[int]:
        """Exchange and move single pieces for as long as that makes it better."""

        def badness(way: Sequence[int]) -> tuple[float, float, float]:
            peak = self.peak(way)
            return max(peak, limit), self.moved(way), peak

        while ways := list(_neighbours(dealt, self.num_stages)):
            better = min(ways, key=badness)
            if badness(better) >= badness(dealt):
                break
            dealt = better
        return dealt

    def searched(self, dealt: list[int], limit: float = 0.0) -> list[int]:
        """The best of all ways: by the peak, or by what is moved, the peak being below a limit."""
        order = sorted(range(len(self.costs)), key=lambda n: n if limit else -self.costs[n])
        best, least = dealt, self.moved(dealt) if limit else self.peak(dealt)
        linked = self._linked(order)
        loads, places, left = [0.0] * self.num_stages, dict[int, int](), MOST_STEPS

        def go_on(depth: int, used: int, badness: float) -> None:
            nonlocal best, least, left
            left -= 1
            if depth == len(order):
                best, least = [places[piece] for piece in range(len(order))], badness
                return
            piece = order[depth]
            for stage in range(min(used + 1, self.num_stages)):
                before = loads[stage]
                load = before + self.costs[piece]
                moved = sum(size for other, size in linked[piece] if places[other] != stage)
                worse = badness + moved if limit else max(badness, load)
                if worse < least and not (limit and load > limit) and left > 0:
                    places[piece], loads[stage] = stage, load
                    go_on(depth + 1, max(used, stage + 1), worse)
                    loads[stage] = before

        go_on(0, 0, 0.0)
        return best

    def _linked(self, order: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """For each piece, those before it in this order that it is linked with."""
        place = {piece: number for number, piece in enumerate(order)}
        found: dict[int, list[tuple[int, int]]] = {piece: [] for piece in order}
        for source, sink, num_bytes in (each for each in self.links if each.source != each.sink):
            first, last = sorted((source, sink), key=place.__getitem__)
            found[last].append((first, num_bytes))
        return found


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
