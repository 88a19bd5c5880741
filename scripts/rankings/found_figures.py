"""What searches found, trained alone as the sample is, beside random networks and the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from scripts.rankings.cell_networks import convolutions
from scripts.rankings.plain_search import METHODS
from scripts.rankings.planned_items import (
    COMPUTE,
    FOUND_SEEDS,
    best_of,
    plain_search_unit,
    supernet_searches,
)
from scripts.rankings.ranking_figures import SCORES, SIGNS, Evidence


def searches(evidence: Evidence) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """How, with which seed, and what each kept search found."""
    for seed in FOUND_SEEDS:
        for each, unit in supernet_searches(evidence.problem, seed):
            if (result := evidence.kept.find(unit)) is not None and "best" in result:
                how = f"supernet, {each.name}, {each.passes:,}, by {unit['score']}"
                yield how, seed, result
        for method, passes in product(METHODS, COMPUTE):
            unit = plain_search_unit(evidence.problem, method, passes, seed)
            if (result := evidence.kept.find(unit)) is not None:
                yield f"{method}, no supernet, as for {passes:,}", seed, result


def found_figures(evidence: Evidence, alone: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each search its best network: scores, spreads over random ones, regret, by each score.

    Regret is beside the best of the sample and of all that was found.
    """
    if "loss" not in alone:
        return []
    rows = []
    for how, seed, result in searches(evidence):
        best = best_of(result)
        if (reached := evidence.reached(best)) is not None:
            means = {s: statistics.mean(r["test"][s] for r in reached) for s in SCORES}
            rows.append(
                {"how": how, "seed": seed, "best": list(best),
                 "convolutions": convolutions(best), **means}
            )  # fmt: skip
    for score in SCORES:
        sign, spread = SIGNS[score], alone[score]
        known = [sign * statistics.mean(row[score]) for row in alone["networks"]]
        least = min([*known, *(sign * row[score] for row in rows)])
        for row in rows:
            above = sign * (spread["random_mean"] - row[score]) / spread["random_spread"]
            row[f"{score}_spreads"] = round(above, 2)
            row[f"{score}_regret"] = round(sign * row[score] - least, 5)
            row[f"{score}_beats"] = sum(sign * row[score] < other for other in known)
    return rows
