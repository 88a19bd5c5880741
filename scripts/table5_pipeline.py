"""A simulated run of one of the seven spaces at the costs of the paper's Table 5."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import search_spaces  # noqa: E402
from naspipe.core.access import Access  # noqa: E402
from naspipe.core.events import Priorities  # noqa: E402
from naspipe.core.ids import StageId  # noqa: E402
from naspipe.core.partition import Partition  # noqa: E402
from naspipe.core.ports import Admission, Residency  # noqa: E402
from naspipe.core.space import Shared, Space  # noqa: E402
from naspipe.core.subnet import Subnet  # noqa: E402
from naspipe.planning.critical_path import critical_path_priorities  # noqa: E402
from naspipe.planning.memory import DeviceSizes, plan_memory  # noqa: E402
from naspipe.planning.partitions import stream_partitions  # noqa: E402
from naspipe.residency.manager import ResidencyManager  # noqa: E402
from naspipe.sim.costs import TableCosts  # noqa: E402
from naspipe.sim.driver import simulate  # noqa: E402
from naspipe.stage.admission import AdmissionWindow  # noqa: E402
from naspipe.stage.builder import build_controller  # noqa: E402
from naspipe.streams.samplers import draw_stream  # noqa: E402
from naspipe.trace.metrics import makespan_seconds  # noqa: E402
from search_spaces.table5 import table5_costs, table5_sizes, without_shared  # noqa: E402

INFO = {
    "vocabulary": 32000, "padding": 1,
    "channels": 3, "height": 224, "width": 224, "classes": 1000,
}  # fmt: skip
"""What WMT and ImageNet say of themselves; no cost of the table depends on it."""

PREVIEW_SUBNETS = 100
"""As the order ``auto`` of a run: how many subnets it simulates under each order to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What is simulated: recompute, window, samplers and budgets are named as in a run."""

    space: str
    subnets: int
    seed: int = 0
    stages: int = 4
    sampler: str = "uniform"
    order: str = "paper"
    partition: str = "balanced"
    window: int = 64
    budget: str = ""
    """As ``3x``; empty for no limit."""
    prefetch: bool = True
    shared: bool = False
    """With the space's shared layers, under their default rules."""


@lru_cache(maxsize=16)
def space_of(name: str, shared: bool) -> Space:
    """A space at the paper's scale."""
    space = search_spaces.build(name, "paper", INFO)
    return space if shared else without_shared(space)


@lru_cache(maxsize=16)
def stream_of(name: str, shared: bool, sampler: str, seed: int, count: int) -> list[Subnet]:
    """The first subnets of a stream; the same choices with shared layers and without."""
    space = space_of(name, shared)
    choices = draw_stream(sampler, space.candidate_counts, seed, count)
    return [Subnet(0, number, space.chain(chosen)) for number, chosen in enumerate(choices)]


def subnets_of(case: Pipeline) -> list[Subnet]:
    """The stream of a pipeline."""
    return stream_of(case.space, case.shared, case.sampler, case.seed, case.subnets)


def partitions_of(case: Pipeline) -> list[Partition]:
    """The partition of every subnet."""
    space = space_of(case.space, case.shared)
    costs = table5_costs(space)
    return stream_partitions(
        case.partition, subnets_of(case), _is_shared(space), costs.table, case.stages
    )


def run(case: Pipeline) -> list[Access]:
    """Simulate; returns the accesses of all stages."""
    space = space_of(case.space, case.shared)
    costs, subnets, partitions = table5_costs(space), subnets_of(case), partitions_of(case)
    managers = _managers(case, space, subnets, partitions)
    priorities: list[Priorities | None] = [None] * len(subnets)
    if case.order == "critical-path":
        priorities = [*critical_path_priorities(subnets, space.rules, costs.table)]
    controllers = [
        build_controller(
            StageId(stage),
            [space.rules],
            order=case.order,
            residency=manager,
            starts_partly_clear=True,
        )
        for stage, manager in enumerate(managers)
    ]

    def admitted(stream: int, number: int) -> tuple[Subnet, Partition, Priorities | None]:
        return subnets[number], partitions[number], priorities[number]

    def admissions() -> list[Admission]:
        return [AdmissionWindow(case.window, len(subnets))]

    stages = simulate(admitted, controllers, costs, admissions)
    return [access for accesses in stages for access in accesses]


@lru_cache(maxsize=64)
def auto_order(case: Pipeline) -> str:
    """The order that is faster over the first subnets, as a run without a budget chooses it."""
    preview = replace(case, subnets=min(case.subnets, PREVIEW_SUBNETS), budget="")
    orders = ("paper", "critical-path")
    return min(orders, key=lambda order: makespan_seconds(run(replace(preview, order=order))))


def costs_of(case: Pipeline) -> TableCosts:
    """The costs of a pipeline's layers."""
    return table5_costs(space_of(case.space, case.shared))


def _managers(
    case: Pipeline, space: Space, subnets: list[Subnet], partitions: list[Partition]
) -> list[Residency | None]:
    if not case.budget:
        return [None] * case.stages
    sizes = DeviceSizes(table5_sizes(space), space.rules)
    memory = plan_memory(case.budget, subnets, partitions, sizes, _is_shared(space))
    return [
        ResidencyManager(budget, sizes, memory.permanent_blocks, prefetches=case.prefetch)
        for budget in memory.budgets
    ]


def _is_shared(space: Space) -> list[bool]:
    return [isinstance(block, Shared) for block in space.blocks]
