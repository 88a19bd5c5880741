"""The searches of a run as plain tables for JSON, and the winning choices.

A choice wins if it is more frequent among the best subnets of a search than among all evaluated.
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
"""One in ten subnets counts as best, but at least :data:`FEWEST_BEST`."""
FEWEST_BEST = 5
_SHOWN = 10


class Choice(NamedTuple):
    """Statistics of a candidate of a block, or of a label's value, over the subnets of a search.

    ``judged`` and ``best`` are the fractions of all distinct subnets, and of the best ones, that
    have it. ``gain`` is the mean score of subnets with it minus that of subnets without it, where
    higher is better; None if all have it, or if a score is infinite.
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
    """Return the choices of a completed search's best subnets, and the number of these subnets.

    Without labels in ``decided``, the decisions are choice blocks.
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
    """Return a choice per distinct value; ``values`` and ``scores`` are by subnet, best first."""
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
    """Return one table for each completed search in a run directory, newest first.

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
    """Return scores and costs by column, and the IDs of the best subnets and of the fronts."""
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
    """Return the subnets that were retrained alone on the newest terms; None if there are none."""
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
    """Convert values that are not finite to null, because JSON has no NaN."""
    return value if math.isfinite(value) else None
