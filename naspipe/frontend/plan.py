"""How a run is carried out: partitions, memory, dispatch order and window, from a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.core.config import Execution, parse_bytes
from naspipe.core.errors import ConfigError
from naspipe.core.events import Priorities
from naspipe.core.ids import LayerId, StageId, StreamId
from naspipe.core.partition import Partition, make_partition
from naspipe.core.space import Shared
from naspipe.core.subnet import Subnet
from naspipe.planning.cost import CostTable
from naspipe.planning.critical_path import critical_path_priorities
from naspipe.planning.memory import (
    DeviceSizes,
    MemoryPlan,
    check_host_memory,
    plan_memory,
)
from naspipe.planning.partitions import stream_partitions
from naspipe.residency.check import check_budget
from naspipe.runtime.compute import Workload
from naspipe.runtime.launcher import profile_apart
from naspipe.runtime.layer_sizes import measure_sizes
from naspipe.runtime.profile_cache import cached_profile
from naspipe.runtime.stage_process import residency_of
from naspipe.sim.costs import StreamCosts, TableCosts
from naspipe.sim.driver import simulate
from naspipe.stage.builder import build_admission, build_controller

PREVIEW_SUBNETS = 100
"""How much of each stream ``order=auto`` simulates before it chooses."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How the subnets of one stream are cut and ordered."""

    partitions: tuple[Partition, ...]
    """Of every subnet."""
    priorities: tuple[Priorities, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """None of this changes a bit of the result of a causal policy."""

    streams: tuple[StreamPlan, ...]
    order: str
    window: int
    memory: MemoryPlan | None = None


@dataclass(frozen=True, slots=True)
class _Streams:
    """What is planned: the streams of one pipeline, with costs where they are needed."""

    workloads: tuple[Workload, ...]
    subnets: tuple[tuple[Subnet, ...], ...]
    costs: tuple[CostTable, ...]
    """Of each stream; empty when nothing needs them."""

    @property
    def policy(self) -> str:
        return self.workloads[0].definition.policy

    def bulk(self, execution: Execution) -> int:
        return self.workloads[0].definition.bulk or execution.stages


def make_plan(
    workloads: Sequence[Workload], execution: Execution, subnets: Sequence[Sequence[Subnet]]
) -> Plan:
    """Profile the layers, balance the stages, give them memory, choose the order.

    One stage runs its subnets one after the other in any order. The policies bsp and asp keep
    one static partition and the paper's order, as the systems do that they stand for.

    Args:
        workloads: of each stream; one synchronisation policy for all.
        execution: what the user asked for.
        subnets: of each stream.

    Raises:
        ConfigError: when the memory budget is below the least that works.
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    needs_costs = execution.stages > 1 or execution.activation_memory
    costs = _costs(workloads, execution) if needs_costs else ()
    streams = _Streams(tuple(workloads), tuple(map(tuple, subnets)), costs)
    is_causal = streams.policy in ("csp", "sequential")
    if not is_causal:
        execution = replace(execution, partition="static", order="paper")
    cuts = [_partitions(streams, number, execution) for number in range(len(workloads))]
    memory = _memory(streams, execution, cuts)
    window = _window(execution, streams, cuts) if costs else execution.window
    plan = Plan(tuple(map(StreamPlan, cuts)), "paper", window, memory)
    if execution.order == "paper" or not costs or execution.stages == 1:
        return plan
    by_path = replace(plan, order="critical-path", streams=_prioritized(streams, cuts))
    if execution.order == "critical-path":
        return by_path
    return min((plan, by_path), key=lambda each: _makespan(each, execution, streams))


def _partitions(streams: _Streams, number: int, execution: Execution) -> tuple[Partition, ...]:
    """Of every subnet of one stream."""
    blocks, subnets = streams.workloads[number].space.blocks, streams.subnets[number]
    if execution.stages == 1:
        return (make_partition((0, len(blocks))),) * len(subnets)
    is_shared = [isinstance(block, Shared) for block in blocks]
    costs = streams.costs[number]
    return tuple(
        stream_partitions(execution.partition, subnets, is_shared, costs, execution.stages)
    )


def _prioritized(
    streams: _Streams, cuts: Sequence[tuple[Partition, ...]]
) -> tuple[StreamPlan, ...]:
    return tuple(
        StreamPlan(cut, tuple(critical_path_priorities(subnets, workload.space.rules, costs)))
        for cut, subnets, workload, costs in zip(
            cuts, streams.subnets, streams.workloads, streams.costs, strict=True
        )
    )


def _costs(workloads: Sequence[Workload], execution: Execution) -> tuple[CostTable, ...]:
    """What every layer costs on this machine, measured once per space and kept."""
    known: dict[int, CostTable] = {}
    for workload in workloads:
        if id(workload.space) not in known:
            known[id(workload.space)] = _cost(workload, execution)
    return tuple(known[id(workload.space)] for workload in workloads)


def _cost(workload: Workload, execution: Execution) -> CostTable:
    return cached_profile(workload, lambda: profile_apart(workload, execution.timeout_seconds))


def _memory(
    streams: _Streams, execution: Execution, cuts: Sequence[tuple[Partition, ...]]
) -> MemoryPlan | None:
    """The budget of each stage, checked; None where there is no limit."""
    if not execution.memory_budget:
        return None
    if streams.policy == "asp":
        raise ConfigError(
            "memory_budget: expected the policy csp, bsp or sequential, found asp, which stashes "
            "older weights on the device for as long as their subnet is under way"
        )
    space = streams.workloads[0].space
    if any(workload.space is not space for workload in streams.workloads):
        raise ConfigError(
            "memory_budget: expected streams of one space, found several; leave it out, or give "
            "each space a pipeline of its own"
        )
    is_shared = [isinstance(block, Shared) for block in space.blocks]
    sizes = DeviceSizes(measure_sizes(streams.workloads[0]), space.rules)
    subnets = [subnet for stream in streams.subnets for subnet in stream]
    partitions = [partition for cut in cuts for partition in cut]
    memory = plan_memory(execution.memory_budget, subnets, partitions, sizes, is_shared)
    for budget_bytes, need in zip(memory.budgets, memory.needs, strict=True):
        check_budget(budget_bytes, need.permanent_bytes, need.largest_bytes)
    check_host_memory(execution.host_memory, memory.needs)
    return memory


def _window(execution: Execution, streams: _Streams, cuts: Sequence[tuple[Partition, ...]]) -> int:
    """How many subnets of a stream may be under way, so that what all keep fits every stage.

    Raises:
        ConfigError: when one subnet alone does not fit.
    """
    if not execution.activation_memory:
        return execution.window
    dearest = sum(
        _dearest(subnets, cut, costs)
        for subnets, cut, costs in zip(streams.subnets, cuts, streams.costs, strict=True)
    )
    limit_bytes = parse_bytes(execution.activation_memory)
    if dearest > limit_bytes:
        raise ConfigError(
            f"activation_memory: expected at least {dearest} bytes, which one subnet keeps on one "
            f"stage, found {limit_bytes}; use --recompute, more stages or a smaller batch"
        )
    return min(execution.window, limit_bytes // max(1, dearest))


def _dearest(subnets: Sequence[Subnet], partitions: Sequence[Partition], costs: CostTable) -> int:
    """The most bytes that one subnet keeps on one stage."""
    return max(
        sum(costs.of(b, subnet.chain[b]).activation_bytes for b in partition.blocks(StageId(stage)))
        for subnet, partition in zip(subnets, partitions, strict=True)
        for stage in range(partition.num_stages)
    )


def _makespan(plan: Plan, execution: Execution, streams: _Streams) -> int:
    """Simulated nanoseconds from the first access to the end of the last."""
    memory, bulk = plan.memory, streams.bulk(execution)
    rules = [workload.space.rules for workload in streams.workloads]
    controllers = [
        build_controller(
            StageId(stage),
            rules,
            policy=streams.policy,
            bulk=bulk,
            order=plan.order,
            residency=residency_of(memory, StageId(stage), execution),
            starts_partly_clear=execution.partly_clear,
        )
        for stage in range(execution.stages)
    ]

    def admitted(stream: StreamId, number: int) -> tuple[Subnet, Partition, Priorities | None]:
        cut = plan.streams[stream]
        urgent = cut.priorities[number] if cut.priorities else None
        return streams.subnets[stream][number], cut.partitions[number], urgent

    def state_bytes(layer: LayerId) -> int:
        return memory.sizes.of(layer.block, layer.candidate).state_bytes if memory else 0

    timing = StreamCosts(
        [
            TableCosts(
                table=costs,
                state_bytes=state_bytes,
                bytes_per_ns=execution.bandwidth / 1e9,
                copy_latency_ns=int(execution.latency * 1e9),
            )
            for costs in streams.costs
        ]
    )
    stages = simulate(
        admitted,
        controllers,
        timing,
        lambda: [
            build_admission(
                streams.policy,
                min(PREVIEW_SUBNETS, len(subnets)),
                window=plan.window,
                bulk=bulk,
                stages=execution.stages,
            )
            for subnets in streams.subnets
        ],
    )
    return max(accesses[-1].end_ns for accesses in stages)
