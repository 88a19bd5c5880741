"""The supernets: what each is trained with, how long, with which seeds, and what comes first.

A length is a number of passes, one forward and backward of one subnet each; a variant whose step
has several gets fewer steps. So all of a length compute alike. Every length of a variant is a run
of its own, whose rate falls to 0 at its end.

``csp`` is the plain loop's result whatever stages it runs on, so one stage trains it. ``bsp`` is
defined by its bulk, so one stage trains it, too. What ``asp`` reads depends on when: it is run on
as many processes as it has stages, and as in PipeDream as many subnets are under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scripts.rankings import unit_keys
from scripts.rankings.cell_space import Problem
from scripts.rankings.unit_keys import Unit

BASE, FAIR, DECAY, SUBNETS = "csp uniform", "csp fair", "csp fair decay", "csp subnets"

VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {"recipe": {"ema": 0.99}},
    "bsp 4": {"policy": "bsp", "bulk": 4},
    "bsp 8": {"policy": "bsp", "bulk": 8},
    "asp 4": {"policy": "asp", "stages": 4, "window": 4},
    "asp 8": {"policy": "asp", "stages": 8, "window": 8},
    "csp late": {
        "rules": {"stem": 4, "cells_1": 4, "cells_3": 4}, "recipe": {"norms": "deferred"}
    },
    FAIR: {"sampler": "fair"},
    DECAY: {
        "sampler": "fair",
        "recipe": {"optimizer_options": {"momentum": 0.9, "weight_decay": 5e-4}},
    },
    "csp fairnas": {
        "sampler": "fair", "passes": "fair", "per_step": 5, "recipe": {"lr": 0.02}
    },
    "csp sandwich": {"passes": "sandwich:2", "per_step": 4, "recipe": {"lr": 0.02}},
    "csp warm-up": {"recipe": {"warmup_steps": 150}},
    SUBNETS: {"passes": "subnets:4", "per_step": 4, "recipe": {"lr": 0.02}},
}  # fmt: skip
"""Fields of ``naspipe.train``, with those that differ from the common recipe under ``recipe``.

The averages of ``ema`` change no bit of the training, so the first variant is judged by both.
``rules`` are lags of shared layers; ``per_step`` says how many passes a step has.
"""

POLICIES = ("bsp 4", "bsp 8", "asp 4", "asp 8")
RECIPES = ("csp late", FAIR, "csp fairnas", "csp sandwich", "csp warm-up")
CALIBRATIONS = {BASE: (4, 0, 16)}
"""Batches that statistics are taken from before judging; 4 for all that are not here."""
SEARCHED = {BASE: (10_000,), FAIR: (10_000, 30_000), **dict.fromkeys(POLICIES, (10_000,))}
"""Passes of the supernets that are searched by evolution."""
SEARCH_BUDGET = 200
"""How many subnets a search judges."""
SCORES = {FAIR: ("loss", "loss+naswot")}
"""What searches judge by; loss where nothing is said."""
VALIDATION = {"fashion-mnist": 40, "digits": 6}
"""Held-out batches that inherited weights are judged by, of each data set."""


class Planned(NamedTuple):
    """One supernet of the table."""

    name: str
    passes: int
    seed: int


WAVES: tuple[tuple[Sequence[str], Sequence[int], Sequence[int]], ...] = (
    ((BASE,), (1000, 3000, 10_000), (1,)),
    (POLICIES, (3000,), (1,)),
    ((BASE,), (1000, 3000), (2, 3)),
    (POLICIES, (3000,), (2, 3)),
    (RECIPES, (3000,), (1,)),
    (POLICIES, (10_000,), (1,)),
    ((BASE,), (10_000,), (2, 3)),
    (RECIPES, (3000,), (2, 3)),
    (RECIPES, (10_000,), (1,)),
    (POLICIES, (1000,), (1, 2, 3)),
    ((FAIR,), (30_000,), (1, 2)),
    ((DECAY,), (10_000,), (1, 2)),
    ((BASE,), (30_000,), (1,)),
    (RECIPES, (1000,), (1, 2, 3)),
    (POLICIES, (10_000,), (2, 3)),
    (RECIPES, (10_000,), (2, 3)),
    (("bsp 8", "asp 8"), (30_000,), (1,)),
    ((BASE,), (30_000,), (2, 3)),
    ((FAIR,), (30_000,), (3,)),
    ((SUBNETS,), (3000,), (1, 2)),
)
"""Variants, passes and seeds: what tells most comes first, and all are in it once."""

SHORT = frozenset(
    {(FAIR, SEARCHED[BASE][0], seed) for seed in (1, 2, 3)}
    | {(name, 3000, seed) for name in (BASE, *POLICIES) for seed in (1, 2)}
)
"""What the first answers need: the recipe with each seed, and the policies with two."""


def planned() -> Iterator[Planned]:
    """All supernets, in the order in which they are trained."""
    for names, lengths, seeds in WAVES:
        for passes in lengths:
            for seed in seeds:
                for name in names:
                    yield Planned(name, passes, seed)


def supernet_unit(problem: Problem, planned: Planned) -> Unit:
    """The unit of a supernet."""
    return unit_keys.supernet(problem, VARIANTS[planned.name], planned.passes, planned.seed)


def judging_units(
    problem: Problem, planned: Planned, architectures: Sequence[Sequence[int]]
) -> dict[str, Unit]:
    """How a supernet is judged; the first way is that which all have."""
    of, validation = supernet_unit(problem, planned), VALIDATION[problem.data]
    found = {}
    for calibration in CALIBRATIONS.get(planned.name, (4,)):
        found[f"calibration {calibration}"] = unit_keys.judging(
            of, architectures, calibration=calibration, validation=validation
        )
    if ema_of(VARIANTS[planned.name]):
        found["averaged weights"] = unit_keys.judging(
            of, architectures, calibration=4, validation=validation, ema=True
        )
    return found


def search_units(problem: Problem, planned: Planned) -> list[Unit]:
    """The searches of a supernet, where it is one of those that are searched."""
    if planned.passes not in SEARCHED.get(planned.name, ()):
        return []
    of, validation = supernet_unit(problem, planned), VALIDATION[problem.data]
    return [
        unit_keys.search(
            of, budget=SEARCH_BUDGET, seed=planned.seed, calibration=4, validation=validation,
            score=score,
        )
        for score in SCORES.get(planned.name, ("loss",))
        if score == "loss" or planned.passes == SEARCHED[BASE][0]
    ]  # fmt: skip


def ema_of(variant: Mapping[str, Any]) -> float:
    """The decay of averages that a variant keeps."""
    return float(variant.get("recipe", {}).get("ema", 0))
