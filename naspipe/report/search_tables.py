"""The searches of a run, as plain tables ready for JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from naspipe.core.errors import ConfigError, LogError
from naspipe.search.limits import COSTS
from naspipe.search.scores import SCORES
from naspipe.search.search_directory import Candidate, Search, find_searches
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
    }  # fmt: skip


def _text(candidate: Candidate, decided: Decided) -> str:
    choices = ",".join(map(str, candidate.choices))
    return f"{choices} {decided.of_subnet(candidate.choices)}".strip()


def _plain(value: float) -> float | None:
    """JSON has no NaN: what is not known is null."""
    return value if math.isfinite(value) else None
