"""Which items a part has: what is kept already is left out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from scripts.rankings import unit_keys, variants
from scripts.rankings.cell_networks import sample
from scripts.rankings.cell_space import Architecture, Problem
from scripts.rankings.kept_units import KeptUnits
from scripts.rankings.plain_search import METHODS
from scripts.rankings.unit_keys import Unit, words_of
from scripts.rankings.unit_queue import Item
from scripts.rankings.unit_work import Worker

FORWARD = 1 / 3
"""What a forward costs beside a pass, which is a forward and a backward."""

FOUND_SEEDS = (1, 2, 3)
COMPUTE = variants.SEARCHED[variants.BASE]
"""Passes of the fair supernets that are trained to be searched, and of searches without any."""
SHORT_STEPS, SHORT_JUDGED = 400, 79
"""Of a short training: its steps, and the batches that it is judged by."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done."""

    problem: Problem
    kept: KeptUnits
    options: argparse.Namespace

    def is_kept(self, unit: Unit) -> bool:
        """Whether a unit was done before."""
        return self.kept.find(unit) is not None

    def seconds_per_pass(self) -> float:
        """By what is kept of networks alone."""
        mine = [
            record["made"]["seconds"] / record["unit"]["steps"]
            for record in self.kept.read("alone").values()
            if record["unit"]["problem"] == self.problem.as_dict()
        ]
        return median(mine) if mine else 0.04

    @property
    def places(self) -> tuple[Path, Path]:
        """Of records, and of runs."""
        return self.kept.directory, self.options.work


def alone_items(plan: Plan) -> list[Item]:
    """The forty alone: both seeds of one after the other."""
    found = []
    for architecture in sample():
        for seed in range(1, plan.options.alone_seeds + 1):
            steps = plan.options.alone_steps
            unit = unit_keys.alone(plan.problem, architecture, steps, seed)
            if not plan.is_kept(unit):
                found.append(
                    Item(name=words_of(unit), do=do_alone, given=(*plan.places, unit), passes=steps)
                )
    return found


def do_alone(records: Path, work: Path, unit: Unit) -> str:
    """In a process of its own."""
    found = Worker(KeptUnits(records), work).alone(unit)
    return f"top-1 {found['test']['top1']:.3f}, loss {found['test']['loss']:.3f}"


def proxy_items(plan: Plan) -> list[Item]:
    """The forty by zero-cost proxies, with the first weights of each seed of a supernet."""
    units = [unit_keys.proxies(plan.problem, sample(), seed) for seed in FOUND_SEEDS]
    return [
        Item(name=words_of(unit), do=do_proxies, given=(*plan.places, unit), passes=100)
        for unit in units
        if not plan.is_kept(unit)
    ]


def do_proxies(records: Path, work: Path, unit: Unit) -> str:
    """In a process of its own."""
    found = Worker(KeptUnits(records), work).proxies(unit)
    return f"naswot {min(found['naswot']):.0f} to {max(found['naswot']):.0f}"


def supernet_items(plan: Plan) -> list[Item]:
    """The supernets of the table, each with its judgings and searches."""
    wanted = (each for each in variants.planned() if is_wanted(plan.options, each))
    return [item for each in wanted for item in supernet_item(plan, each)]


def supernet_item(plan: Plan, each: variants.Planned) -> list[Item]:
    """One of them; none where all is kept."""
    unit = variants.supernet_unit(plan.problem, each)
    judgings = list(variants.judging_units(plan.problem, each, sample()).values())
    searches = variants.search_units(plan.problem, each)
    if all(map(plan.is_kept, (unit, *judgings, *searches))):
        return []
    name = f"{each.name}, {each.passes} passes, seed {each.seed}"
    return [
        Item(
            name=name, do=do_supernet, given=(*plan.places, unit, judgings, searches),
            passes=each.passes + sum(map(price, (*judgings, *searches))),
            takes_all=unit["variant"].get("stages", 1) > 1,
        )
    ]  # fmt: skip


def price(unit: Unit) -> int:
    """Passes that would take as long as a judging or a search."""
    subnets = unit["budget"] if unit["kind"] == "search" else len(unit["architectures"])
    return int(FORWARD * subnets * (unit["calibration"] + unit["validation"]))


def is_wanted(options: argparse.Namespace, each: variants.Planned) -> bool:
    """What the command leaves of the table."""
    if options.short and each not in variants.SHORT:
        return False
    pairs = (
        (options.variants, each.name), (options.lengths, each.passes), (options.seeds, each.seed)
    )  # fmt: skip
    return all(not said or str(value) in said.split(",") for said, value in pairs)


def do_supernet(
    records: Path, work: Path, unit: Unit, judgings: list[Unit], searches: list[Unit]
) -> str:
    """In a process of its own."""
    kept = KeptUnits(records)
    Worker(kept, work).supernet(unit, judgings, searches)
    found = kept.find(unit) or {}
    return str(found.get("failed") or f"loss {found['curve'][-1]:.3f}")


def found_items(plan: Plan) -> list[Item]:
    """Searches with and without a supernet, then the full training of what each found."""
    supernets, others, winners = [], [], []
    for seed in FOUND_SEEDS:
        for each, search in supernet_searches(plan.problem, seed):
            if (result := plan.kept.find(search)) is not None:
                winners += winner_items(plan, f"found by {each.name}, seed {seed}", result)
            elif each.name == variants.FAIR and each.passes in COMPUTE:
                supernets += supernet_item(plan, each)
        supernets = list({item.name: item for item in supernets}.values())
    for method, passes, seed in product(reversed(METHODS), COMPUTE, FOUND_SEEDS):
        unit = plain_search_unit(plan.problem, method, passes, seed)
        if (result := plan.kept.find(unit)) is None:
            others.append(plain_search_item(plan, unit))
        else:
            winners += winner_items(plan, f"found by {words_of(unit)}", result)
    return [*supernets, *others, *winners]


def supernet_searches(problem: Problem, seed: int) -> Iterator[tuple[variants.Planned, Unit]]:
    """The supernets that are searched with a seed, each with its search."""
    for name, lengths in variants.SEARCHED.items():
        for passes in lengths:
            each = variants.Planned(name, passes, seed)
            for search in variants.search_units(problem, each):
                yield each, search


def plain_search_item(plan: Plan, unit: Unit) -> Item:
    """A search without a supernet, network after network."""
    passes = unit["budget"] * unit["short_steps"]
    return Item(name=words_of(unit), do=do_found, given=(*plan.places, unit), passes=passes)


def plain_search_unit(problem: Problem, method: str, passes: int, seed: int) -> Unit:
    """A search without a supernet that computes what one with a supernet of so many passes does."""
    search, *_ = variants.search_units(problem, variants.Planned(variants.FAIR, passes, seed))
    budget = (passes + price(search)) // (SHORT_STEPS + int(FORWARD * SHORT_JUDGED))
    return unit_keys.found(problem, method, budget=budget, short_steps=SHORT_STEPS, seed=seed)


def winner_items(plan: Plan, name: str, result: dict[str, Any]) -> list[Item]:
    """What was found, trained alone as the forty are."""
    if "failed" in result:
        return []
    best, found = best_of(result), []
    for seed in range(1, plan.options.alone_seeds + 1):
        steps = plan.options.alone_steps
        unit = unit_keys.alone(plan.problem, best, steps, seed)
        if not plan.is_kept(unit):
            said = f"{name}: {words_of(unit)}"
            found.append(Item(name=said, do=do_alone, given=(*plan.places, unit), passes=steps))
    return found


def best_of(result: dict[str, Any]) -> Architecture:
    """The best network of a search; those of supernets list the ten best."""
    best = result["best"]
    return tuple(best[0] if isinstance(best[0], list) else best)


def do_found(records: Path, work: Path, unit: Unit) -> str:
    """In a process of its own."""
    found = Worker(KeptUnits(records), work).found(unit)
    return f"{len(found['tried'])} tried, best loss {min(found['loss']):.3f}"


ITEMS = {
    "alone": alone_items, "proxies": proxy_items, "supernets": supernet_items, "found": found_items
}  # fmt: skip
