"""Which architectures of the cell are the same network, and a sample of different ones.

Edges come as NNI's labels do: 0 to 1, 0 to 2, 1 to 2, 0 to 3, 1 to 3, 2 to 3. Every node is the
sum of its edges. An edge of ``none`` is no edge, ``skip_connect`` is what it comes from, and an
average of a sum is the sum of averages. So a cell is a sum of terms, and the terms of two cells
that compute the same are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from numpy.random import RandomState

OPERATIONS = ("none", "skip", "conv 1x1", "conv 3x3", "average")
NONE, SKIP, CONV_1, CONV_3, AVERAGE = range(5)
CONVOLUTIONS = (CONV_1, CONV_3)
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
SHARE = {0: 5, 1: 6, 2: 6, 3: 6, 4: 6, 5: 6, 6: 5}
"""Of forty architectures, how many have so many convolutions."""

INPUT = ("input",)
Terms = tuple[tuple[Any, int], ...]
"""Terms with how often each comes, sorted."""


def terms_of(architecture: tuple[int, ...]) -> Terms:
    """What the last node is a sum of."""
    sums: list[Counter[Any]] = [Counter([INPUT])]
    for node in range(1, 4):
        total: Counter[Any] = Counter()
        for (start, end), operation in zip(EDGES, architecture, strict=True):
            if end == node:
                total += applied(operation, sums[start])
        sums.append(total)
    return in_order(sums[3])


def applied(operation: int, terms: Counter[Any]) -> Counter[Any]:
    """The terms behind an edge."""
    if operation == NONE:
        return Counter()
    if operation == SKIP:
        return terms
    if operation == AVERAGE:
        return Counter({("average", term): count for term, count in terms.items()})
    return Counter([(OPERATIONS[operation], in_order(terms))])


def in_order(terms: Counter[Any]) -> Terms:
    """Terms in an order that all equal sums have."""
    return tuple(sorted(terms.items(), key=repr))


def reads_input(terms: Any) -> bool:
    """Whether the network's input is anywhere in it."""
    return "'input'" in repr(terms)


def used_edges(architecture: tuple[int, ...]) -> list[int]:
    """Edges on a way from the input to the output."""
    present = [number for number, operation in enumerate(architecture) if operation != NONE]
    ahead, behind = {0}, {3}
    for number in present:
        if EDGES[number][0] in ahead:
            ahead.add(EDGES[number][1])
    for number in reversed(present):
        if EDGES[number][1] in behind:
            behind.add(EDGES[number][0])
    return [n for n in present if EDGES[n][0] in ahead and EDGES[n][1] in behind]


def convolutions(architecture: tuple[int, ...]) -> int:
    """Convolutions on a way from the input to the output."""
    return sum(architecture[edge] in CONVOLUTIONS for edge in used_edges(architecture))


@cache
def strata() -> Mapping[int, tuple[tuple[int, ...], ...]]:
    """All architectures whose output depends on the input, by their convolutions."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for architecture in product(range(5), repeat=len(EDGES)):
        if reads_input(terms_of(architecture)):
            found.setdefault(convolutions(architecture), []).append(architecture)
    return {count: tuple(found[count]) for count in sorted(found)}


def strata_shares() -> dict[int, float]:
    """How much of the space has so many convolutions."""
    total = sum(map(len, strata().values()))
    return {count: len(each) / total for count, each in strata().items()}


@cache
def sample(seed: int = 1) -> tuple[tuple[int, ...], ...]:
    """Architectures of each stratum, no two of them the same network.

    They are dealt out a stratum at a time, so that the first few are of all strata.
    """
    draws = RandomState(seed)
    seen: set[Terms] = set()
    drawn: dict[int, list[tuple[int, ...]]] = {}
    for count, wanted in SHARE.items():
        members, chosen = strata()[count], drawn.setdefault(count, [])
        for place in draws.permutation(len(members)).tolist():
            terms = terms_of(members[place])
            if len(chosen) < wanted and terms not in seen:
                seen.add(terms)
                chosen.append(members[place])
    rounds = range(max(SHARE.values()))
    return tuple(each[n] for n in rounds for each in drawn.values() if n < len(each))
