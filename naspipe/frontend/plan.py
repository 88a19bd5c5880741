"""How a run is carried out: partition, dispatch order and priorities, from a quick profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from naspipe.core.config import Execution
from naspipe.core.events import Priorities
from naspipe.core.ids import StageId
from naspipe.core.partition import Partition
from naspipe.core.rules import Rule
from naspipe.core.subnet import Subnet
from naspipe.planning.balance import balanced_partition
from naspipe.planning.cost import CostTable
from naspipe.planning.critical_path import critical_path_priorities
from naspipe.runtime.compute import Workload
from naspipe.runtime.launcher import profile_apart
from naspipe.sim.costs import TableCosts
from naspipe.sim.driver import simulate
from naspipe.stage.builder import build_controller

PREVIEW_SUBNETS = 100
"""How much of the stream ``order=auto`` simulates before it chooses."""


@dataclass(frozen=True, slots=True)
class Plan:
    """None of this changes a bit of the result."""

    partition: Partition
    order: str
    priorities: tuple[Priorities, ...] | None = None


def make_plan(workload: Workload, execution: Execution, subnets: Sequence[Subnet]) -> Plan:
    """Profile the layers, balance the stages, choose the order.

    One stage needs no profile; it runs its subnets one after the other in any order.

    Raises:
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    rules = workload.space.rules
    if execution.stages == 1:
        return Plan(balanced_partition([1.0] * len(rules), 1), "paper")
    costs = profile_apart(workload, execution.timeout_seconds)
    partition = balanced_partition(costs.stream_means_ns(subnets), execution.stages)
    if execution.order == "paper":
        return Plan(partition, "paper")
    priorities = tuple(critical_path_priorities(subnets, rules, costs))
    by_path = Plan(partition, "critical-path", priorities)
    if execution.order == "critical-path":
        return by_path
    plans = (Plan(partition, "paper"), by_path)
    preview = subnets[:PREVIEW_SUBNETS]
    return min(plans, key=lambda plan: _makespan(plan, execution, preview, rules, costs))


def _makespan(
    plan: Plan,
    execution: Execution,
    subnets: Sequence[Subnet],
    rules: Sequence[Rule],
    costs: CostTable,
) -> int:
    """Simulated nanoseconds from the first access to the end of the last."""
    controllers = [
        build_controller(
            StageId(stage),
            rules,
            order=plan.order,
            starts_partly_clear=execution.partly_clear,
        )
        for stage in range(execution.stages)
    ]

    def admitted(sequence_id: int) -> tuple[Subnet, Partition, Priorities | None]:
        urgent = plan.priorities[sequence_id] if plan.priorities else None
        return subnets[sequence_id], plan.partition, urgent

    stages = simulate(
        admitted, len(subnets), controllers, TableCosts(table=costs), execution.window
    )
    return max(accesses[-1].end_ns for accesses in stages)
