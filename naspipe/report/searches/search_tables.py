"""The searches of a run, as plain tables ready for JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError, LogError
from naspipe.report.searches.winning import as_table
from naspipe.search.limits import COSTS
from naspipe.search.retrained import (
    COMPARED,
    FEWEST,
    compared_by,
    confidence,
    newest_alike,
    read_retrained,
)
from naspipe.search.run_searches import find_searches
from naspipe.search.scores import SCORES
from naspipe.search.search_directory import Candidate, Search
from naspipe.trace.access.decided import Decided

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
