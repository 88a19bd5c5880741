"""The searches of a run as plain tables ready for JSON, and which choices win in them.

A choice wins if the best subnets of a search have it more often than all that were evaluated.
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
from naspipe.search.search_directory import Search, find_searches
from naspipe.search.strategies import COSTS
from naspipe.store.labels import Decided

BEST_SHARE = 10
"""One in ten subnets is among the best, and at least :data:`FEWEST_BEST`."""
FEWEST_BEST = 5
_SHOWN = 10


class Choice(NamedTuple):
    """A candidate of a block, or a value of a label, over the subnets of a search.

    ``judged`` and ``best`` are the shares of all different subnets, and of the best ones, that have
    it. ``gain`` is the mean score of those that have it less that of the others, more being better;
    None if all have it, or if a score is infinite.
    """

    name: str
    judged: float
    best: float
    gain: float | None


class Decision(NamedTuple):
    """A choice block, or a label of a space that has labels."""

    name: str
    choices: tuple[Choice, ...]


def winning(search: Search, decided: Decided) -> tuple[list[Decision], int]:
    """What the best subnets of a search that ended have, and how many these are.

    Without labels in ``decided``, choice blocks count.
    """
    ranked = search.ranked()
    if not ranked:
        return [], 0
    count = min(len(ranked), max(FEWEST_BEST, len(ranked) // BEST_SHARE))
    scores = [merit(each.scores, search.score) for each in ranked]
    columns: dict[str, list[str]] = {}
    for each in ranked:
        labels = decided.values_of(each.choices)
        named = {label: "|".join(values) for label, values in labels.items()} or {
            str(block): str(choice) for block, choice in enumerate(each.choices)
        }
        for name, value in named.items():
            columns.setdefault(name, []).append(value)
    decisions = [
        Decision(name, tuple(_choices(values, scores, count)))
        for name, values in columns.items()
        if len(values) == len(ranked) and len(set(values)) > 1
    ]
    return decisions, count


def _choices(values: Sequence[str], scores: Sequence[float], count: int) -> list[Choice]:
    """Every value that occurs; ``values`` and ``scores`` are those of subnets, the best first."""
    found = []
    for value in sorted(set(values), key=_order):
        own = [score for each, score in zip(values, scores, strict=True) if each == value]
        rest = [score for each, score in zip(values, scores, strict=True) if each != value]
        gain = statistics.fmean(own) - statistics.fmean(rest) if rest else math.nan
        share = values[:count].count(value) / count
        found.append(Choice(value, len(own) / len(values), share, _plain(gain)))
    return found


def _order(value: str) -> tuple[bool, float, str]:
    """Sort numbers by size, before everything else."""
    return (False, float(value), "") if value.isdigit() else (True, 0.0, value)


def search_tables(run: Path, decided: Decided) -> list[dict[str, Any]]:
    """One table for each search in a run directory that came to its end, the newest first.

    Raises:
        ConfigError: if a file of a search is damaged.
    """
    try:
        return [_table(search, decided) for search in find_searches(run)]
    except (LogError, OSError) as error:
        raise ConfigError(
            f"cannot report on {run}: {error}; restore the file or remove that search"
        ) from error


def _table(search: Search, decided: Decided) -> dict[str, Any]:
    """Scores and costs by column; of the best and of the fronts, the subnets' numbers."""
    candidates = search.candidates
    decisions, count = winning(search, decided)
    texts = (",".join(map(str, each.choices)) for each in candidates)
    return {
        "name": search.name,
        "score": search.score,
        "strategy": str(search.manifest["definition"].get("strategy", "")),
        "scores": {
            name: [_plain(each.scores.of(name)) for each in candidates]
            for name in dict.fromkeys([*SCORES, search.score])
        },
        "costs": {
            name: [_plain(getattr(each.cost, name)) for each in candidates] for name in COSTS
        },
        "choices": [
            f"{text} {decided.of_subnet(each.choices)}".strip()
            for text, each in zip(texts, candidates, strict=True)
        ],
        "best": [each.sequence_id for each in search.ranked()[:_SHOWN]],
        "fronts": {name: [each.sequence_id for each in search.front(name)] for name in COSTS},
        "winning": {
            "best": count,
            "decisions": [
                {"name": each.name, "choices": [choice._asdict() for choice in each.choices]}
                for each in decisions
            ],
        },
        "alone": _alone(search),
    }


def _alone(search: Search) -> dict[str, Any] | None:
    """Subnets that were retrained alone since, on the newest terms; None if there are none."""
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


def _plain(value: float) -> float | None:
    """JSON has no NaN: what is not known is null."""
    return value if math.isfinite(value) else None
