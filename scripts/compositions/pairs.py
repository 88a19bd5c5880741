"""A covering array: few cases in which, together, every pair of values occurs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import combinations

from scripts.compositions.cases import FAMILIES, Case, domain, draw, settled

Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two keys with their values, in the order of the keys."""

CANDIDATES = 24
"""Cases that are drawn for each row; the one with the most new pairs is taken."""


def pairs_of(case: Case) -> set[Pair]:
    """The pairs of values that a case names. What has its first value is not named.

    Two settings that both have their first value are in almost every case, so these pairs need no
    array. A value beside any first value occurs in the rows in which it is drawn.
    """
    named = sorted((key, repr(value)) for key, value in case.items() if not key.startswith("then."))
    return set(combinations(named, 2))


def array(rows: int, seed: int = 0) -> Iterator[Case]:
    """Cases, each of which adds many pairs; they end when candidates add none any longer.

    Args:
        rows: how many at most.
        seed: of the draws.
    """
    random_ = random.Random(seed)
    covered: set[Pair] = set()
    missed = 0
    for number in range(rows):
        family = FAMILIES[number % len(FAMILIES)]
        candidates = [_dense(random_, family) for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda case: len(pairs_of(case) - covered))
        new = pairs_of(best) - covered
        missed = 0 if new else missed + 1
        if missed > len(FAMILIES):
            return
        covered |= new
        yield best


def _dense(random_: random.Random, family: str) -> Case:
    """A case with about half of its keys at another value than the first."""
    case = draw(random_, family)
    for key, values in domain(family).items():
        if key not in case and len(values) > 1 and random_.random() < 0.4:
            case[key] = random_.choice(values[1:])
    return settled(case)


def covered_share(cases: Iterable[Case], seen: Iterable[Case]) -> tuple[int, int]:
    """How many pairs some cases have, and how many of all pairs that occur in others."""
    have: set[Pair] = set()
    for case in cases:
        have |= pairs_of(case)
    possible: set[Pair] = set()
    for case in seen:
        possible |= pairs_of(case)
    return len(have), len(possible - have)
