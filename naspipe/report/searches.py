"""The searches of a run, as plain tables ready for JSON, and which choices win in them.

A choice wins where the best subnets of a search have it more often than all that were judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError, LogError
from naspipe.search.retrained import (
    COMPARED,
    FEWEST,
    compared_by,
    confidence,
    newest_alike,
    read_retrained,
)
from naspipe.search.scores import SCORES, merit
from naspipe.search.search_directory import Candidate, Search, find_searches
from naspipe.search.strategies import COSTS
from naspipe.store.labels import Decided

# Which choices win


BEST_SHARE = 10
"""The best are one of so many subnets, and at least :data:`FEWEST_BEST`."""
FEWEST_BEST = 5


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
    count = min(len(ranked), max(FEWEST_BEST, len(ranked) // BEST_SHARE))
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


# The tables of the searches


_SHOWN = 10


def search_tables(run: Path, decided: Decided) -> list[dict[str, Any]]:
    """One table per search that came to its end, the newest first.

    Args:
        run: directory.
        decided: what its labels say of a subnet.

    Raises:
        ConfigError: when a file of one is damaged.
    """
    try:
        return [_table(search, decided) for search in find_searches(run)]
    except (LogError, OSError) as error:
        raise ConfigError(
            f"cannot report on {run}: {error}; restore the file or remove that search"
        ) from error


def _table(search: Search, decided: Decided) -> dict[str, Any]:
    """Scores and costs by column; of the best and of the fronts, the subnets' numbers."""
    definition = search.manifest["definition"]
    best = search.ranked()[:_SHOWN]
    return {
        "name": search.name,
        "score": search.score,
        "strategy": str(definition.get("strategy", "")),
        "scores": {name: [_plain(each.scores.of(name)) for each in search.candidates]
                   for name in dict.fromkeys([*SCORES, search.score])},
        "costs": {name: [_plain(getattr(each.cost, name)) for each in search.candidates]
                  for name in COSTS},
        "choices": [_text(each, decided) for each in search.candidates],
        "best": [each.sequence_id for each in best],
        "fronts": {name: [each.sequence_id for each in search.front(name)] for name in COSTS},
        "winning": as_table(search, decided),
        "alone": _alone(search),
    }  # fmt: skip


def _alone(search: Search) -> dict[str, Any] | None:
    """Subnets that were trained alone since, with the newest terms; None where there are none."""
    retrained = newest_alike(read_retrained(search))
    if not retrained:
        return None
    places = {each.sequence_id: place for place, each in enumerate(search.ranked(), 1)}
    found = confidence(search, retrained)
    return {
        **retrained[0].terms._asdict(),
        "subnets": [each.subnet for each in retrained],
        "ranks": [places.get(each.subnet) for each in retrained],
        "scores": {name: [_plain(each.scores.of(name)) for each in retrained] for name in COMPARED},
        "compared_by": compared_by(search.score),
        "confidence": None if found is None else {**found._asdict()},
        "fewest": FEWEST,
    }


def _text(candidate: Candidate, decided: Decided) -> str:
    choices = ",".join(map(str, candidate.choices))
    return f"{choices} {decided.of_subnet(candidate.choices)}".strip()


def _plain(value: float) -> float | None:
    """JSON has no NaN: what is not known is null."""
    return value if math.isfinite(value) else None
