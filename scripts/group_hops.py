"""Groups that are far apart: latencies of a sum that a step waits for, in a chain and a tree."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from naspipe.config.definition import Execution
from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, Subnet
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.engine.events import LAYER, SUM, Parcel
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.pipeline import Pipeline, plan_pipeline
from naspipe.plan.simulation import simulate_run
from scripts.paper.costs import BlockCosts

BLOCKS = 8
"""Of the network."""
SHAPES = ((2, 4), (4, 2), (8, 1))
"""Groups and stages."""
EQUAL = LayerCost(1_000_000, 2_000_000, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarCosts(BlockCosts):
    """Only sums take long on their way."""

    latency_ns: int

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.latency_ns if parcel == SUM else 0


def waits_in_hops(groups: int, stages: int, steps: Steps) -> float:
    """How much later a step of one network ends, in latencies of a sum."""
    chain = Chain(rules=(Exact(),) * BLOCKS, is_shared=(False,) * BLOCKS, buffered=frozenset())
    numbers = map(SequenceId, range(steps.passes))
    subnets = tuple(Subnet(FIRST_STREAM, number, (0,) * BLOCKS) for number in numbers)
    table = CostTable({(block, 0): EQUAL for block in range(BLOCKS)})
    pipeline = Pipeline(streams=(Stream(chain, subnets, table),), steps=steps)
    execution = Execution(groups=groups, stages=stages, order="paper", window=64)
    plan = plan_pipeline(pipeline, execution)
    forward_ns = {(block, 0): EQUAL.forward_ns for block in range(BLOCKS)}
    latency_ns = 1000 * EQUAL.total_ns
    near, far = (
        simulate_run(pipeline, plan, execution, costs).makespan_ns
        for costs in (FarCosts(forward_ns=forward_ns, latency_ns=each) for each in (0, latency_ns))
    )
    return (far - near) / latency_ns


def all_hops(arguments: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A step of 8 passes on every shape."""
    rows = []
    table = Table("groups x stages", "chain", "tree", box=SIMPLE_HEAD,
                  title="latencies that a step waits for")  # fmt: skip
    for groups, stages in SHAPES:
        found = {
            kind: round(waits_in_hops(groups, stages, Steps(8, reduction=kind)), 2)
            for kind in ("fold", "tree")
        }
        rows.append({"groups": groups, "stages": stages, **found})
        table.add_row(f"{groups}x{stages}", *(f"{each:g}" for each in found.values()))
    console.print(table)
    return rows
