"""From records to figures: noise ceiling, taus of supernets, and what searches found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from naspipe.search.scores import interval, kendalls_tau
from scripts.rankings import unit_keys, variants
from scripts.rankings.cell_networks import convolutions, sample, strata_shares
from scripts.rankings.cell_space import Architecture, Problem
from scripts.rankings.kept_units import KeptUnits

LEVEL = 0.9
SCORES = ("loss", "top1")
SUMS = ("loss+naswot", "loss+synflow", "loss+synflow+naswot")
SIGNS = {"loss": 1, "top1": -1}
"""Less loss is better, more top-1 is."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is kept of one problem, with networks alone of one length."""

    problem: Problem
    kept: KeptUnits
    steps: int
    seeds: int

    def reached(self, architecture: Architecture) -> list[dict[str, Any]] | None:
        """What a network reached alone with each seed; None unless all are kept."""
        found = [
            self.kept.find(unit_keys.alone(self.problem, architecture, self.steps, seed))
            for seed in range(1, self.seeds + 1)
        ]
        whole = [each for each in found if each is not None]
        return whole if len(whole) == self.seeds else None

    def proxies(self, seed: int) -> dict[str, list[float]] | None:
        """Zero-cost scores of the sample with the first weights of a seed; more is better."""
        return self.kept.find(unit_keys.proxies(self.problem, sample(), seed))

    def truth(self) -> dict[Architecture, list[dict[str, Any]]]:
        """The architectures of the sample that all seeds trained."""
        found = {each: self.reached(each) for each in sample()}
        return {each: results for each, results in found.items() if results is not None}


def agreement(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Tau with its bootstrap interval."""
    low, high = interval(one, other, LEVEL)
    return {
        "tau": round(kendalls_tau(one, other), 3),
        f"tau_{100 * LEVEL:.0f}": [round(low, 3), round(high, 3)],
    }


def tau_within(one: Sequence[float], other: Sequence[float], groups: Sequence[int]) -> float:
    """Of pairs of a group that differ in both, the share in order less that out of order."""
    signs = []
    for a, b in combinations(range(len(groups)), 2):
        product = (one[a] - one[b]) * (other[a] - other[b])
        if groups[a] == groups[b] and product:
            signs.append(1 if product > 0 else -1)
    return round(statistics.mean(signs), 3) if signs else 0.0


def alone_figures(evidence: Evidence) -> dict[str, Any]:
    """What the sample reached alone, how alike both seeds' orders are, and what counts say."""
    truth = evidence.truth()
    rows = [
        {
            "architecture": list(each), "convolutions": convolutions(each),
            "params": results[0]["params"],
            **{score: [round(r["test"][score], 4) for r in results] for score in SCORES},
        }
        for each, results in truth.items()
    ]  # fmt: skip
    found: dict[str, Any] = {"steps": evidence.steps, "split": "test", "networks": rows}
    if len(rows) < 3:
        return found
    for score in SCORES:
        by_seed = list(zip(*(row[score] for row in rows), strict=True))
        means = [statistics.mean(row[score]) for row in rows]
        sign = SIGNS[score]
        found[score] = {
            "noise_ceiling": agreement(by_seed[0], by_seed[1]) if evidence.seeds > 1 else None,
            "by_convolutions": agreement([-sign * row["convolutions"] for row in rows], means),
            "by_params": agreement([-sign * row["params"] for row in rows], means),
            **by_proxies(evidence, truth, score),
            **spread_of(rows, means),
        }
    return found


def by_proxies(
    evidence: Evidence, truth: Mapping[Architecture, list[dict[str, Any]]], score: str
) -> dict[str, Any]:
    """What each zero-cost proxy says, and both together, with the first weights of seed 1."""
    if (known := evidence.proxies(1)) is None or len(truth) < len(sample()):
        return {}
    reached = [statistics.mean(r["test"][score] for r in each) for each in truth.values()]
    sums = {"naswot": ("naswot",), "synflow": ("synflow",), "synflow+naswot": tuple(known)}
    return {
        f"by_{name}": agreement(standard_sums(known, parts), [-SIGNS[score] * r for r in reached])
        for name, parts in sums.items()
    }


def standard_sums(known: Mapping[str, Sequence[float]], parts: Sequence[str]) -> list[float]:
    """Sums of standard scores of the sample: of each part, where more is better."""
    counts = [convolutions(each) for each in sample()]
    columns = []
    for part in parts:
        mean, spread = over_space(counts, known[part])
        columns.append([(value - mean) / spread for value in known[part]])
    return [sum(row) for row in zip(*columns, strict=True)]


def spread_of(rows: Sequence[Mapping[str, Any]], values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over the whole space."""
    mean, spread = over_space([row["convolutions"] for row in rows], values)
    return {"random_mean": round(mean, 5), "random_spread": round(spread, 5)}


def over_space(counts: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation where strata count as they do in the whole space.

    Args:
        counts: of convolutions, of each network.
        values: theirs.
    """
    shares = strata_shares()
    weights = [shares[count] / counts.count(count) for count in counts]
    total = sum(weights)
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    square = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / total
    return mean, square**0.5


def supernet_figures(evidence: Evidence) -> list[dict[str, Any]]:
    """Of each supernet that is kept, how its scores order the sample."""
    truth = evidence.truth()
    found = []
    for each in variants.planned():
        record = evidence.kept.read("supernet").get(
            unit_keys.key_of(variants.supernet_unit(evidence.problem, each))
        )
        if record is None:
            continue
        row = {**each._asdict(), **record["result"], "made": record["made"], "judged": {}}
        judgings = variants.judging_units(evidence.problem, each, sample())
        for way, unit in judgings.items():
            scores = evidence.kept.find(unit)
            if scores is not None and "failed" not in scores and len(truth) > 2:
                row["judged"][way] = taus_of(scores, truth, evidence.proxies(each.seed))
        found.append(row)
    return found


def taus_of(
    scores: Mapping[str, Sequence[float]],
    truth: Mapping[Architecture, list[dict[str, Any]]],
    proxies: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Any]:
    """Agreement of inherited scores with what was reached alone, by each score.

    With proxies of the whole sample also that of the loss with each, and with both, as
    ``naspipe search --score loss+naswot`` ranks.
    """
    places = [number for number, each in enumerate(sample()) if each in truth]
    counts = [convolutions(sample()[place]) for place in places]
    found: dict[str, Any] = {}
    for score in SCORES:
        inherited = [scores[score][place] for place in places]
        reached = [statistics.mean(r["test"][score] for r in each) for each in truth.values()]
        found[score] = {
            **agreement(inherited, reached),
            "tau_alike": tau_within(inherited, reached, counts),
            "inherited": [round(value, 4) for value in inherited],
        }
    if proxies is not None and len(truth) == len(sample()):
        reached = [-statistics.mean(r["test"]["loss"] for r in each) for each in truth.values()]
        known = {"loss": [-value for value in scores["loss"]], **proxies}
        for name in SUMS:
            found[name] = agreement(standard_sums(known, name.split("+")), reached)
    return found


def over_seeds(rows: Sequence[Mapping[str, Any]], way: str, score: str) -> list[dict[str, Any]]:
    """Of each variant and length, the taus of all seeds, and their mean."""
    taus: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if score in (judged := row["judged"].get(way, {})):
            taus.setdefault((row["name"], row["passes"]), []).append(judged[score]["tau"])
    return [
        {"name": name, "passes": passes, "taus": each, "mean": round(statistics.mean(each), 3)}
        for (name, passes), each in sorted(taus.items())
    ]


def between(rows: Sequence[Mapping[str, Any]], way: str, least: int) -> dict[str, float]:
    """How alike supernets of so many passes or more order the sample by loss, pair by pair.

    Where they agree with each other more than with networks alone, chance is not what they err by.
    """
    orders = [
        row["judged"][way]["loss"]["inherited"]
        for row in rows
        if row["passes"] >= least and way in row["judged"]
    ]
    taus = [kendalls_tau(one, other) for one, other in combinations(orders, 2)]
    if not taus:
        return {}
    return {
        "passes": least, "supernets": len(orders), "mean": round(statistics.mean(taus), 3),
        "least": round(min(taus), 3), "most": round(max(taus), 3),
    }  # fmt: skip
