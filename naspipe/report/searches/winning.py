"""Which choices win: of each block, how often the best subnets of a search have each candidate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from naspipe.search.scores import merit
from naspipe.search.search_directory import Candidate, Search
from naspipe.trace.access.decided import Decided

BEST_SHARE = 10
"""The best are one of so many subnets, and at least :data:`FEWEST`."""
FEWEST = 5


class Choice(NamedTuple):
    """A candidate of a block, or a value of a label, over the subnets of a search."""

    name: str
    judged: float
    """Share of all different subnets that have it."""
    best: float
    """Share of the best ones that have it."""
    gain: float | None
    """Mean score of those that have it, less that of those that have not; more is better. None
    where all have it, or where a score is infinite."""


class Decision(NamedTuple):
    """A choice block, or a label of a space that has labels."""

    name: str
    choices: tuple[Choice, ...]


def winning(search: Search, decided: Decided) -> tuple[list[Decision], int]:
    """What the best subnets have, and how many these are.

    Args:
        search: that ended.
        decided: what labels say of its subnets; without labels, choice blocks count.
    """
    ranked = search.ranked()
    count = min(len(ranked), max(FEWEST, len(ranked) // BEST_SHARE))
    if not ranked:
        return [], 0
    scores = [merit(each.scores, search.score) for each in ranked]
    columns: dict[str, list[str]] = {}
    for each in ranked:
        for name, value in _named(each, decided):
            columns.setdefault(name, []).append(value)
    whole = {name: values for name, values in columns.items() if len(values) == len(ranked)}
    decisions = [
        Decision(name, tuple(_choices(values, scores, count)))
        for name, values in whole.items()
        if len(set(values)) > 1
    ]
    return decisions, count


def _named(candidate: Candidate, decided: Decided) -> Sequence[tuple[str, str]]:
    """What is decided in a subnet: (name, value)."""
    labels = decided.values_of(candidate.choices)
    if labels:
        return [(label, "|".join(values)) for label, values in labels.items()]
    return [(str(block), str(choice)) for block, choice in enumerate(candidate.choices)]


def _choices(values: Sequence[str], scores: Sequence[float], count: int) -> list[Choice]:
    """Every value that occurs; ``values`` and ``scores`` are those of subnets, the best first."""
    found = []
    for value in sorted(set(values), key=_order):
        own = [score for each, score in zip(values, scores, strict=True) if each == value]
        rest = [score for each, score in zip(values, scores, strict=True) if each != value]
        gain = statistics.fmean(own) - statistics.fmean(rest) if rest else math.nan
        share = values[:count].count(value) / count
        known = gain if math.isfinite(gain) else None
        found.append(Choice(value, len(own) / len(values), share, known))
    return found


def _order(value: str) -> tuple[bool, float, str]:
    """Numbers by their size, before everything else."""
    return (False, float(value), "") if value.isdigit() else (True, 0.0, value)


def as_table(search: Search, decided: Decided) -> dict[str, Any]:
    """Plain values ready for JSON."""
    decisions, count = winning(search, decided)
    return {
        "best": count,
        "decisions": [
            {"name": each.name, "choices": [choice._asdict() for choice in each.choices]}
            for each in decisions
        ],
    }
