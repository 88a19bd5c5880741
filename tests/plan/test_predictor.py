"""Few accesses wait for a load, at the paper's costs and with its budget of three subnets."""

from __future__ import annotations

import pytest

import search_spaces
from naspipe.config.ids import Subnet
from naspipe.engine import builder
from naspipe.engine import residency as prefetch
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.builder import build_controller
from naspipe.engine.commands import LoadLayer
from naspipe.engine.controller import StageController
from naspipe.engine.residency import LEAST_AHEAD, ResidencyManager
from naspipe.plan.bounds import critical_path_priorities
from naspipe.plan.memory import DeviceSizes, plan_memory
from naspipe.plan.partitions import Partitioner
from naspipe.plan.virtual_driver import simulate
from naspipe.store.metrics import summarize
from naspipe.streams.samplers import draw_stream
from search_spaces.table5 import table5_costs, table5_sizes, without_shared
from tests.search_spaces import chain

STAGES, SUBNETS = 4, 60


def run(name, order, budget, prefetches=True):
    space = without_shared(search_spaces.build(name, "paper", {**chain.TEXT, **chain.IMAGES}))
    costs, sizes = table5_costs(space), DeviceSizes(table5_sizes(space), space.rules)
    stream = draw_stream("uniform", space.candidate_counts, 0, SUBNETS)
    subnets = [Subnet(0, number, choices) for number, choices in enumerate(stream)]
    is_shared = [False] * len(space)
    cut = Partitioner("balanced", subnets, is_shared, costs.table, STAGES)
    partitions = list(map(cut, subnets))
    priorities = critical_path_priorities(subnets, space.rules, costs.table)
    memory = plan_memory(budget, subnets, partitions, sizes, [is_shared])
    controllers = [
        build_controller(
            stage,
            [space.rules],
            order=order,
            residency=ResidencyManager(budget_bytes, sizes, prefetches=prefetches),
            starts_partly_clear=True,
        )
        for stage, budget_bytes in enumerate(memory.budgets)
    ]
    stages = simulate(
        lambda _, y: (subnets[y], partitions[y], priorities[y]), controllers, costs,
        lambda: [AdmissionWindow(64, SUBNETS)],
    )  # fmt: skip
    return summarize([access for accesses in stages for access in accesses], STAGES)


class Counted(StageController):
    """A controller that counts the loads it commands."""

    loads = 0

    def handle(self, event):
        commands = super().handle(event)
        Counted.loads += sum(isinstance(command, LoadLayer) for command in commands)
        return commands


@pytest.mark.parametrize(
    ("order", "budget", "least"),
    [("paper", "3x", 0.984), ("critical-path", "3x", 0.982), ("paper", "1.5x", 0.975)],
)
def test_few_accesses_wait(order, budget, least):
    """It is hardest in cv.c1: its loads are the longest, and its layers are rarely used again."""
    found = run("cv.c1", order, budget)
    assert found.hit_rate >= least
    assert found.stall_ratio <= 0.01


@pytest.mark.parametrize("ahead", [LEAST_AHEAD, 10_000])
def test_few_layers_are_loaded_and_not_used(monkeypatch, ahead):
    """A forward and a backward are two uses, often far apart; a limit holds the rest off."""
    monkeypatch.setattr(Counted, "loads", 0)
    monkeypatch.setattr(builder, "StageController", Counted)
    monkeypatch.setattr(prefetch, "LEAST_AHEAD", ahead)
    monkeypatch.setattr(prefetch, "MOST_AHEAD", max(ahead, prefetch.MOST_AHEAD))
    run("cv.c1", "paper", "3x")
    uses = 2 * SUBNETS * 24
    assert (Counted.loads < 0.9 * uses) == (ahead == LEAST_AHEAD)


def test_without_the_predictor_many_do():
    found = run("cv.c1", "paper", "3x", prefetches=False)
    assert found.hit_rate < 0.7
    assert found.stall_ratio > 0.03
