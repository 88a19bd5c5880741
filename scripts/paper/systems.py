"""The systems that the paper compares, on the virtual clock, and the batch that each can hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

import search_spaces
from naspipe.api.simulate import Scenario, table5_scenario
from naspipe.config.definition import Definition
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from naspipe.plan.simulation import bound_of, outcome_of
from scripts.paper.footprint import SYSTEMS as MEMORY_SYSTEMS
from scripts.paper.footprint import FootprintTable, largest_batch
from scripts.paper.measured_footprints import measure_footprints
from scripts.paper.published import BATCH_FIXED_SHARE

DEVICE_BYTES = 11 * 10**9 - 10**9
"""An RTX 2080 Ti's 11 GB, less about 1 GB for the driver and libraries."""

BATCHES = {"nlp": (8, 16, 32, 64, 96, 128, 192), "cv": (4, 8, 16, 32, 48, 64)}
FULL_BATCH = {family: sizes[-1] for family, sizes in BATCHES.items()}
"""The paper's batch, for which Table 5's times are."""

TOKENS = 64
"""Of a sentence in a full batch: 192 sentences are 12,288 tokens."""

WINDOW = 32
"""Subnets under way; more change little (and a budget of 3 subnets does not depend on it)."""

_INFO = {
    "vocabulary": 32_000, "padding": 1, "channels": 3, "height": 224, "width": 224,
    "classes": 1000,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSystem:
    """One system, or one with a part taken out."""

    label: str
    policy: str
    budget: str = ""
    prefetch: bool = True
    partition: str = "balanced"
    memory: str
    """Whose memory it uses: a name of :data:`scripts.paper.footprint.SYSTEMS`."""


NASPIPE = SimulatedSystem(label="naspipe", policy="csp", budget="3x", memory="naspipe")
SYSTEMS = (
    NASPIPE,
    SimulatedSystem(label="gpipe", policy="bsp", memory="gpipe"),
    SimulatedSystem(label="pipedream", policy="asp", memory="pipedream"),
    SimulatedSystem(label="vpipe", policy="bsp", budget="2x", prefetch=False, memory="vpipe"),
)
"""GPipe is a bulk as large as there are stages; VPipe the same, with layers loaded when they are
needed, since it foresees the next micro-batch but not the next subnet."""


@lru_cache(maxsize=8)
def scenario_of(space: str) -> Scenario:
    """A space at Table 5's costs, without shared layers, which the paper's artifact freezes."""
    return table5_scenario(space, with_shared=False)


def simulate_system(
    system: SimulatedSystem,
    space: str,
    stages: int,
    steps: int,
    seed: int,
    *,
    sampler: str = "uniform",
    order: str = "paper",
    window: int = WINDOW,
) -> dict[str, Any]:
    """Figures of one simulated run, at the costs of a full batch."""
    scenario = scenario_of(space)
    execution = Execution(
        stages=stages,
        order=order,
        window=window,
        recompute=True,
        partition=system.partition,
        memory_budget=system.budget,
        prefetch=system.prefetch,
    )
    pipeline = scenario.pipeline(sampler, seed, steps, policy=system.policy, bulk=stages)
    outcome = outcome_of(scenario.run(pipeline, execution), pipeline, bound_of(pipeline))
    return {
        "steps_per_second": outcome.passes_per_second,
        "bubble": outcome.bubble_ratio,
        "bound": outcome.bound,
        "hit_rate": outcome.hit_rate,
        "stall": outcome.stall_ratio,
        "layer_bytes": max(use.layer_bytes for use in outcome.uses),
    }


def averaged(system: SimulatedSystem, space: str, stages: int, steps: int, seeds: int,
             **how: Any) -> dict[str, float]:  # fmt: skip
    """Means of :func:`simulate_system` over seeds."""
    found = [simulate_system(system, space, stages, steps, seed, **how) for seed in range(seeds)]
    return {name: sum(row[name] for row in found) / seeds for name in found[0]}


@lru_cache(maxsize=8)
def footprints(space: str) -> FootprintTable:
    """Bytes of a space's layers and activations at the paper's scale; nothing is allocated."""
    built = search_spaces.build(space, "paper", _INFO)
    workload = Workload(
        space=built,
        data=lambda seed, number: {},
        loss=search_spaces.defaults(space, "paper").loss(),
        definition=Definition(space=space, steps=1, recipe=Recipe(optimizer="SGD")),
    )
    return measure_footprints(workload, _text if space.startswith("nlp") else _images)


def batch_of(system: SimulatedSystem, space: str, stages: int) -> int:
    """The largest batch that fits, with as many subnets under way as there are stages."""
    memory = next(each for each in MEMORY_SYSTEMS if each.name == system.memory)
    return largest_batch(
        footprints(space),
        memory,
        num_stages=stages,
        in_flight=stages,
        budget_bytes=DEVICE_BYTES,
        sizes=BATCHES[family_of(space)],
    )


def supernet_bytes(space: str, stages: int) -> float:
    """State of the whole supernet, per stage."""
    table = footprints(space)
    return sum(table.supernet_bytes(block) for block in range(len(table.twins))) / stages


def family_of(space: str) -> str:
    """``nlp`` or ``cv``."""
    return space.partition(".")[0]


def samples_per_second(space: str, steps_per_second: float, batch: int, fixed: float) -> float:
    """Throughput with a smaller batch than Table 5's times are for.

    Args:
        space: whose full batch the times are for.
        steps_per_second: at a full batch.
        batch: samples that fit; 0 for a system that does not fit at all.
        fixed: share of a step's time that does not depend on the batch: 0 where the device is as
            efficient at any, :data:`BATCH_FIXED_SHARE` as the paper's own figures have it.
    """
    share = batch / FULL_BATCH[family_of(space)]
    return steps_per_second * batch / (fixed + (1 - fixed) * share) if batch else 0.0


PAPER_SHARE = BATCH_FIXED_SHARE


def _text(count: int) -> dict[str, torch.Tensor]:
    shape = (count, TOKENS)
    names = ("source", "previous", "target")
    return {name: torch.empty(shape, dtype=torch.int64, device="meta") for name in names}


def _images(count: int) -> dict[str, torch.Tensor]:
    return {
        "input": torch.empty(count, 3, 224, 224, device="meta"),
        "target": torch.empty(count, dtype=torch.int64, device="meta"),
    }
