"""How a run is carried out: partitions, memory, dispatch order and window, from a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.core.config import Execution, parse_bytes
from naspipe.core.errors import ConfigError
from naspipe.core.events import Priorities
from naspipe.core.ids import LayerId, StageId
from naspipe.core.partition import Partition, make_partition
from naspipe.core.rules import Rule
from naspipe.core.space import Shared
from naspipe.core.subnet import Subnet
from naspipe.planning.cost import CostTable
from naspipe.planning.critical_path import critical_path_priorities
from naspipe.planning.memory import DeviceSizes, MemoryPlan, plan_memory
from naspipe.planning.partitions import stream_partitions
from naspipe.residency.check import check_budget
from naspipe.runtime.compute import Workload
from naspipe.runtime.launcher import profile_apart
from naspipe.runtime.layer_sizes import measure_sizes
from naspipe.runtime.profile_cache import cached_profile
from naspipe.runtime.stage_process import residency_of
from naspipe.sim.costs import TableCosts
from naspipe.sim.driver import simulate
from naspipe.stage.builder import build_controller

PREVIEW_SUBNETS = 100
"""How much of the stream ``order=auto`` simulates before it chooses."""


@dataclass(frozen=True, slots=True)
class Plan:
    """None of this changes a bit of the result."""

    partitions: tuple[Partition, ...]
    """Of every subnet."""
    order: str
    window: int
    priorities: tuple[Priorities, ...] | None = None
    memory: MemoryPlan | None = None


def make_plan(workload: Workload, execution: Execution, subnets: Sequence[Subnet]) -> Plan:
    """Profile the layers, balance the stages, give them memory, choose the order.

    One stage runs its subnets one after the other in any order.

    Raises:
        ConfigError: when the memory budget is below the least that works.
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    rules = workload.space.rules
    needs_costs = execution.stages > 1 or execution.activation_memory
    costs = _costs(workload, execution) if needs_costs else None
    partitions = (make_partition((0, len(rules))),) * len(subnets)
    if execution.stages > 1 and costs is not None:
        is_shared = [isinstance(block, Shared) for block in workload.space.blocks]
        partitions = tuple(
            stream_partitions(execution.partition, subnets, is_shared, costs, execution.stages)
        )
    memory = _memory(workload, execution, subnets, partitions)
    window = execution.window if costs is None else _window(execution, subnets, partitions, costs)
    plan = Plan(partitions, "paper", window, None, memory)
    if execution.order == "paper" or costs is None or execution.stages == 1:
        return plan
    priorities = tuple(critical_path_priorities(subnets, rules, costs))
    by_path = replace(plan, order="critical-path", priorities=priorities)
    if execution.order == "critical-path":
        return by_path
    preview = subnets[:PREVIEW_SUBNETS]
    return min((plan, by_path), key=lambda each: _makespan(each, execution, preview, rules, costs))


def _costs(workload: Workload, execution: Execution) -> CostTable:
    """What every layer costs on this machine, measured once and kept."""
    return cached_profile(workload, lambda: profile_apart(workload, execution.timeout_seconds))


def _memory(
    workload: Workload,
    execution: Execution,
    subnets: Sequence[Subnet],
    partitions: Sequence[Partition],
) -> MemoryPlan | None:
    """The budget of each stage, checked; None where there is no limit."""
    if not execution.memory_budget:
        return None
    is_shared = [isinstance(block, Shared) for block in workload.space.blocks]
    sizes = DeviceSizes(measure_sizes(workload), workload.space.rules)
    memory = plan_memory(execution.memory_budget, subnets, partitions, sizes, is_shared)
    for budget_bytes, need in zip(memory.budgets, memory.needs, strict=True):
        check_budget(budget_bytes, need.permanent_bytes, need.largest_bytes)
    return memory


def _window(
    execution: Execution,
    subnets: Sequence[Subnet],
    partitions: Sequence[Partition],
    costs: CostTable,
) -> int:
    """How many subnets may be under way, so that what their passes keep fits every stage.

    Raises:
        ConfigError: when one subnet alone does not fit.
    """
    if not execution.activation_memory:
        return execution.window
    dearest = max(
        sum(costs.of(b, subnet.chain[b]).activation_bytes for b in partition.blocks(StageId(stage)))
        for subnet, partition in zip(subnets, partitions, strict=True)
        for stage in range(partition.num_stages)
    )
    limit_bytes = parse_bytes(execution.activation_memory)
    if dearest > limit_bytes:
        raise ConfigError(
            f"activation_memory: expected at least {dearest} bytes, which one subnet keeps on one "
            f"stage, found {limit_bytes}; use --recompute, more stages or a smaller batch"
        )
    return min(execution.window, limit_bytes // max(1, dearest))


def _makespan(
    plan: Plan,
    execution: Execution,
    subnets: Sequence[Subnet],
    rules: Sequence[Rule],
    costs: CostTable,
) -> int:
    """Simulated nanoseconds from the first access to the end of the last."""
    memory = plan.memory
    controllers = [
        build_controller(
            StageId(stage),
            rules,
            order=plan.order,
            residency=residency_of(memory, StageId(stage), execution),
            starts_partly_clear=execution.partly_clear,
        )
        for stage in range(execution.stages)
    ]

    def admitted(sequence_id: int) -> tuple[Subnet, Partition, Priorities | None]:
        urgent = plan.priorities[sequence_id] if plan.priorities else None
        return subnets[sequence_id], plan.partitions[sequence_id], urgent

    def state_bytes(layer: LayerId) -> int:
        return memory.sizes.of(layer.block, layer.candidate).state_bytes if memory else 0

    timing = TableCosts(
        table=costs,
        state_bytes=state_bytes,
        bytes_per_ns=execution.bandwidth / 1e9,
        copy_latency_ns=int(execution.latency * 1e9),
    )
    stages = simulate(admitted, len(subnets), controllers, timing, plan.window)
    return max(accesses[-1].end_ns for accesses in stages)
