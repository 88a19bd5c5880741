"""How streams are executed: partitions, memory, window, dispatch order and priorities.

Everything here follows from costs and sizes alone, so the simulator, the planner and a real run
make the same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import LayerId, StageId, StreamId
from naspipe.config.partition import Partition
from naspipe.config.rules import grown_up
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import PLAIN, Wiring
from naspipe.engine.builder import READY_TASKS
from naspipe.engine.events import Planned, Priorities
from naspipe.engine.history import check_groups
from naspipe.engine.policies import traits_of
from naspipe.engine.residency import check_budget
from naspipe.plan.bounds import (
    GRAIN,
    STREAMS_GRAIN,
    coarsened,
    critical_path_priorities,
)
from naspipe.plan.chains import CutSteps, Stream, are_cut_alike, cut_by_steps
from naspipe.plan.costs import CostTable, plan_window
from naspipe.plan.latest_start import CutStream, latest_start_priorities
from naspipe.plan.memory import MemoryPlan, Sizes, check_host_memory, plan_memory, staying_blocks


def costs_of(stream: Stream) -> CostTable:
    if stream.costs is None:
        raise ConfigError("dispatch order: expected layers of known costs, found none")
    return stream.costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Streams that share the stages, under one synchronisation policy."""

    streams: tuple[Stream, ...]
    policy: str = "csp"
    bulk: int = 1
    steps: Steps = ONE_PASS
    wiring: Wiring = PLAIN

    def splitting(self, dearer: float) -> Pipeline:
        """Return the same pipeline with split backwards.

        Args:
            dearer: split the candidates whose parts together take at most this many times as long
                as the whole backward; if infinite, split all candidates, whether measured or not.
        """
        streams = tuple(each.splitting(dearer) for each in self.streams)
        return replace(self, streams=streams)

    @property
    def is_causal(self) -> bool:
        return traits_of(self.policy).is_causal

    @property
    def buffered(self) -> frozenset[LayerId] | None:
        """Layers whose forwards leave buffers for the next one; None if not known."""
        own = [each.chain.buffered for each in self.streams]
        layers = (
            LayerId(StreamId(s), *place) for s, found in enumerate(own) for place in found or ()
        )
        return None if None in own else frozenset(layers)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How the subnets of one stream are cut and ordered."""

    planned: tuple[Planned, ...] = field(repr=False)
    cut: CutSteps | None = field(default=None, repr=False, compare=False)
    cuts: frozenset[Partition] = frozenset()
    """All partitions that ``cut`` may return; empty if they are not known."""
    stateless: frozenset[tuple[int, int]] = field(default=frozenset(), repr=False)
    split: Container[tuple[int, int]] = field(default=frozenset(), repr=False)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(each.partition for each in self.planned)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pipeline is executed; with a causal policy, results do not depend on it."""

    streams: tuple[StreamPlan, ...]
    order: str
    window: int
    memory: MemoryPlan | None = field(default=None, repr=False)
    buffered: frozenset[LayerId] | None = field(default=None, repr=False)
    chosen: str = ""
    """A note for the user if a simulation chose to move layers."""


def plan_pipeline(pipeline: Pipeline, execution: Execution, sizes: Sizes | None = None) -> Plan:
    """Balance the stages, assign their memory, limit the subnets under way, and rank the accesses.

    A single stage runs its subnets one after the other in any order. The policies bsp and asp keep
    one static partition and the paper's order, as do the systems that they represent. Steps with
    probes keep one static partition, because a probe's layers do not move. The order ``auto`` is
    planned as ``paper``, the partition ``auto`` as ``balanced``; ``plan.simulation.chosen_plan``
    makes the final choice.

    Raises:
        ConfigError: if the memory budget is below the minimum that works, or is not available.
    """
    steps = pipeline.steps
    if not pipeline.is_causal:
        execution = execution.changed(partition="static", order="paper")
    elif steps.probes:
        execution = execution.changed(partition="static")
    elif execution.pipeline.partition == "auto":
        execution = execution.changed(partition="balanced")
    if execution.pipeline.partition == "rotated" and execution.pipeline.order in READY_TASKS:
        raise ConfigError(
            "partition=rotated: expected an order that holds no task back, found "
            f"order={execution.pipeline.order}; use partition=balanced"
        )
    cutters = cut_by_steps(pipeline.streams, execution, pipeline.wiring, steps)
    check_groups(execution.pipeline.groups, pipeline.policy, steps)
    cuts = [cut(each.subnets) for each, cut in zip(pipeline.streams, cutters, strict=True)]
    memory = _memory(pipeline, cuts, execution, sizes)
    window = _window(pipeline, cuts, execution)
    asked = execution.pipeline.order
    order = "paper" if asked == "auto" or asked in RANKINGS else asked
    alike = are_cut_alike(pipeline.streams, execution, pipeline.wiring)
    streams = tuple(
        StreamPlan(
            tuple(map(Planned, stream.subnets, of_stream)),
            cut,
            frozenset(of_stream if is_alike else ()),
            stream.chain.stateless,
            stream.split,
        )
        for stream, of_stream, cut, is_alike in zip(
            pipeline.streams, cuts, cutters, alike, strict=True
        )
    )
    plan = Plan(streams, order, window, memory, pipeline.buffered)
    if asked not in RANKINGS:
        return plan
    if any(stream.is_sample for stream in pipeline.streams):
        raise ConfigError(
            f"order {asked}: expected a stream that is known from the beginning, found "
            f"one that follows from losses; use --order paper or auto"
        )
    return RANKINGS[asked](plan, pipeline) if has_choice(pipeline, execution) else plan


def has_choice(pipeline: Pipeline, execution: Execution) -> bool:
    """Return True if the dispatch order can make a difference here."""
    is_ranked = all(s.costs is not None and not s.is_sample for s in pipeline.streams)
    return pipeline.is_causal and is_ranked and execution.workers > 1


def as_planned(pipeline: Pipeline, plan: Plan) -> Pipeline:
    """Return the pipeline with its backwards split as the plan specifies."""
    pairs = zip(pipeline.streams, plan.streams, strict=True)
    return replace(pipeline, streams=tuple(each.split_at(own.split) for each, own in pairs))


def by_critical_path(plan: Plan, pipeline: Pipeline) -> Plan:
    """Return the same plan under the critical-path order."""
    steps = pipeline.steps
    levels = [
        critical_path_priorities(stream.subnets, stream.chain.rules, costs_of(stream), steps)
        for stream in pipeline.streams
    ]
    return in_grains(plan, pipeline, levels)


def in_grains(plan: Plan, pipeline: Pipeline, levels: Sequence[list[Priorities]]) -> Plan:
    """Return the same plan with longest paths in multiples of a share of a subnet's work."""
    grain = GRAIN if len(pipeline.streams) == 1 else STREAMS_GRAIN
    priorities = []
    for stream, own in zip(pipeline.streams, levels, strict=True):
        costs, subnets = costs_of(stream), stream.subnets
        places = (place for subnet in subnets for place in enumerate(subnet.chain))
        work_ns = sum(costs.of(*place).total_ns for place in places)
        priorities.append(coarsened(own, max(1, int(grain * work_ns / len(subnets)))))
    return _ranked(plan, pipeline, "critical-path", priorities)


def by_latest_start(plan: Plan, pipeline: Pipeline) -> Plan:
    """Return the same plan under the order of latest starts."""
    streams = [
        CutStream(
            subnets=stream.subnets,
            partitions=each.partitions,
            rules=stream.chain.rules,
            costs=costs_of(stream),
            ordered=plan.buffered,
            is_trained=pipeline.wiring.of(number).is_trained,
        )
        for number, (each, stream) in enumerate(zip(plan.streams, pipeline.streams, strict=True))
    ]
    found = latest_start_priorities(
        streams, pipeline.steps, plan.window, defers_writes=_defers_writes(plan, pipeline)
    )
    return _ranked(plan, pipeline, "latest-start", found)


RANKINGS: Mapping[str, Callable[[Plan, Pipeline], Plan]] = {
    "critical-path": by_critical_path,
    "latest-start": by_latest_start,
}
"""Functions that set the priorities of accesses, by the order that needs them."""


def _defers_writes(plan: Plan, pipeline: Pipeline) -> bool:
    """Return True if WRITEs that no subnet waits for run after accesses that others wait for.

    With a memory budget, a gradient is consumed before the next one is made. If a step has several
    passes or waits for all its gradients, or if streams are connected, others wait for each block.
    """
    steps = pipeline.steps
    is_plain = steps.passes == 1 and not steps.is_gated and not pipeline.wiring.taps
    return plan.memory is None and is_plain


def _ranked(
    plan: Plan, pipeline: Pipeline, order: str, priorities: Sequence[Sequence[Priorities]]
) -> Plan:
    if not _defers_writes(plan, pipeline):
        priorities = [[each._replace(write=()) for each in own] for own in priorities]
    streams = tuple(
        replace(
            each,
            planned=tuple(
                planned._replace(priorities=ranked)
                for planned, ranked in zip(each.planned, own, strict=False)
            ),
        )
        for each, own in zip(plan.streams, priorities, strict=True)
    )
    return replace(plan, order=order, streams=streams)


def _memory(
    pipeline: Pipeline,
    cuts: Sequence[tuple[Partition, ...]],
    execution: Execution,
    sizes: Sizes | None,
) -> MemoryPlan | None:
    """Return the checked budget of each stage; None if there is no limit."""
    budget = execution.memory.budget
    if not budget:
        return None
    if not traits_of(pipeline.policy).waits_for_versions:
        raise ConfigError(
            f"memory_budget: expected the policy csp, bsp or sequential, found {pipeline.policy}, "
            f"which stashes older weights on the device for as long as their subnet is under way"
        )
    if sizes is None:
        raise ConfigError(
            f"memory_budget {budget!r:.80}: expected layers of known sizes, found none; leave it "
            f"out"
        )
    subnets = [subnet for stream in pipeline.streams for subnet in stream.subnets]
    partitions = [partition for cut in cuts for partition in cut]
    is_sample = any(stream.is_sample for stream in pipeline.streams)
    groups = execution.pipeline.groups
    chains = [stream.chain for stream in pipeline.streams]
    stays = [staying_blocks(chain.rules, chain.is_shared, groups) for chain in chains]
    memory = plan_memory(budget, subnets, partitions, sizes, stays, is_sample)
    for budget_bytes, need in zip(memory.budgets, memory.needs, strict=True):
        check_budget(budget_bytes, need.permanent_bytes, need.largest_bytes)
    check_host_memory(execution.memory.host, memory.needs)
    return memory


def _window(pipeline: Pipeline, cuts: Sequence[tuple[Partition, ...]], execution: Execution) -> int:
    """Return how many subnets may be under way so that their activations fit on every stage."""
    kept_bytes = 0
    for stream, cut in zip(pipeline.streams, cuts, strict=True):
        if execution.memory.activations and (costs := stream.costs) is not None:
            kept_bytes += max(  # by one subnet on one stage
                sum(
                    costs.of(block, subnet.chain[block]).activation_bytes
                    for block in partition.blocks(StageId(stage))
                )
                for subnet, partition in zip(stream.subnets, cut, strict=True)
                for stage in range(partition.num_stages)
            )
    return plan_window(execution, pipeline.steps, kept_bytes)


def with_grown_lags(pipeline: Pipeline) -> Pipeline:
    """Return the same streams without the initial phase in which lags grow."""
    streams = tuple(
        replace(each, chain=replace(each.chain, rules=tuple(map(grown_up, each.chain.rules))))
        for each in pipeline.streams
    )
    return replace(pipeline, streams=streams)
