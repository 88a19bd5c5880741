"""Which items a part has: what is kept already is left out."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.rankings import unit_keys, variants
from scripts.rankings.cell_networks import sample
from scripts.rankings.cell_space import Problem
from scripts.rankings.kept_units import KeptUnits
from scripts.rankings.unit_keys import Unit, words_of
from scripts.rankings.unit_queue import Item
from scripts.rankings.unit_work import Worker

JUDGED = 1 / 3
"""What a forward costs beside a pass."""


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


def supernet_items(plan: Plan) -> list[Item]:
    """The supernets of the table, each with its judgings."""
    found = []
    for each in variants.planned():
        if not is_wanted(plan.options, each):
            continue
        unit = variants.supernet_unit(plan.problem, each)
        judgings = list(variants.judging_units(plan.problem, each, sample()).values())
        if all(map(plan.is_kept, (unit, *judgings))):
            continue
        batches = sum(j["calibration"] + j["validation"] for j in judgings)
        found.append(
            Item(
                name=f"{each.name}, {each.passes} passes, seed {each.seed}", do=do_supernet,
                given=(*plan.places, unit, judgings),
                passes=each.passes + int(JUDGED * batches * len(sample())),
                takes_all=unit["variant"].get("stages", 1) > 1,
            )
        )  # fmt: skip
    return found


def is_wanted(options: argparse.Namespace, each: variants.Planned) -> bool:
    """What the command leaves of the table."""
    pairs = (
        (options.variants, each.name), (options.lengths, each.passes), (options.seeds, each.seed)
    )  # fmt: skip
    return all(not said or str(value) in said.split(",") for said, value in pairs)


def do_supernet(records: Path, work: Path, unit: Unit, judgings: list[Unit]) -> str:
    """In a process of its own."""
    kept = KeptUnits(records)
    Worker(kept, work).supernet(unit, judgings, ())
    found = kept.find(unit) or {}
    return str(found.get("failed") or f"loss {found['curve'][-1]:.3f}")


ITEMS = {"alone": alone_items, "supernets": supernet_items}
