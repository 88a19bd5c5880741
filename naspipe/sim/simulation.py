"""A whole run on the virtual clock, from streams and costs to its access log and its numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from naspipe.config.definition import Execution
from naspipe.config.ids import LayerId, StageId, StreamId
from naspipe.core.ports import Admission
from naspipe.planning.causal_bound import causal_bound, side_by_side
from naspipe.planning.cost import CostTable
from naspipe.planning.memory import MemoryPlan, Sizes
from naspipe.schedule.participation import participants
from naspipe.sim.access_table import AccessTable
from naspipe.sim.costs import PARCEL_NS, PAUSE_NS, StreamCosts, TableCosts
from naspipe.sim.driver import Admitted, simulate_into
from naspipe.sim.grown_lags import with_grown_lags
from naspipe.sim.known_passes import KnownPasses
from naspipe.sim.pipeline import (
    RANKINGS,
    Pipeline,
    Plan,
    has_choice,
    plan_pipeline,
)
from naspipe.sim.ports import Costs
from naspipe.sim.table_metrics import summarize_table
from naspipe.sim.virtual_clock import VirtualClock
from naspipe.stage.builder import build_admission, build_controller, new_history
from naspipe.stage.residency import residency_of
from naspipe.trace.reading.metrics import Summary

PREVIEW_SUBNETS = 100
"""How much of each stream is simulated to choose what is left to ``auto``."""

AUTO, ROTATED, LATEST_START = "auto", "rotated", "latest-start"

WORTH = 1.03
"""Layers move from stage to stage where that is so many times as fast: simulations are not more
exact."""

Timing = Callable[[Pipeline, MemoryPlan | None], Costs]
"""What everything takes, under a plan of the memory."""

SPLIT_DEARER = 1.15
"""Candidates are split whose two parts of a backward take up to so many times as long as the whole
one."""

SPLIT_WORTH = 1.01
"""Backwards are split where that is so many times as fast."""


@dataclass(frozen=True)
class SimulatedRun:
    """What a simulation leaves."""

    plan: Plan
    accesses: AccessTable = field(repr=False)
    num_stages: int
    layer_bytes: tuple[int, ...]
    """The most that each stage's layers occupied; empty without a memory budget."""

    @cached_property
    def summary(self) -> Summary:
        """Throughput, bubble, hits and stalls."""
        return summarize_table(self.accesses, self.num_stages)

    @property
    def makespan_ns(self) -> int:
        """From the first access to the end of the last."""
        return int(self.accesses.column("end_ns").max())


def simulate_run(
    pipeline: Pipeline,
    plan: Plan,
    execution: Execution,
    timing: Costs,
    clock: VirtualClock | None = None,
) -> SimulatedRun:
    """Run a pipeline under a plan to its end; pure, and the same at every call.

    Args:
        pipeline: the streams, and their policy.
        plan: see :func:`naspipe.sim.pipeline.plan_pipeline`; may be that of longer streams.
        execution: stages, prefetching and whether forwards start partly clear.
        timing: what everything takes.
        clock: a new one, where ``timing`` has to look at it.

    Raises:
        InvariantError: when the schedule stops before its end: a bug.
    """
    stages = [StageId(stage) for stage in range(execution.workers)]
    rules = [stream.chain.rules for stream in pipeline.streams]
    steps, lengths = pipeline.steps, list(map(len, rules))
    history = new_history(rules, pipeline.wiring, steps=pipeline.steps, buffered=plan.buffered)
    taken_part = _taken_part(pipeline, plan, execution.workers)
    managers = [residency_of(plan.memory, stage, execution) for stage in stages]
    controllers = [
        build_controller(
            stage,
            rules,
            policy=pipeline.policy,
            bulk=pipeline.bulk,
            order=plan.order,
            residency=manager,
            starts_partly_clear=execution.pipeline.partly_clear,
            history=history,
            steps=pipeline.steps,
            wiring=pipeline.wiring,
            streams=streams,
            reduction_launch=execution.pipeline.reduction_launch,
            splits=any(stream.split for stream in plan.streams),
        )
        for stage, manager, streams in zip(stages, managers, taken_part, strict=True)
    ]

    def admitted(stream: StreamId, number: int) -> Admitted:
        is_trained = pipeline.wiring.of(stream).is_trained and not steps.is_probe(number)
        return *plan.streams[stream].planned[number], is_trained

    table = AccessTable()
    admissions = (_admissions(pipeline, plan, streams) for streams in taken_part)
    known = KnownPasses(steps, lengths) if steps.probes else None
    simulate_into(
        table.append, admitted, controllers, timing, lambda: next(admissions), clock, known
    )
    peaks = tuple(manager.peak_bytes for manager in managers if manager is not None)
    return SimulatedRun(plan, table, execution.workers, peaks)


def _taken_part(pipeline: Pipeline, plan: Plan, num_stages: int) -> list[list[int]]:
    """Of each stage, the streams that it takes part in."""
    partitions = [{each.partition for each in stream.planned} for stream in plan.streams]
    taking_part = participants(partitions, pipeline.wiring, num_stages)
    return [
        [number for number, stages in enumerate(taking_part) if stage in stages]
        for stage in range(num_stages)
    ]


def _admissions(pipeline: Pipeline, plan: Plan, streams: Sequence[int]) -> list[Admission]:
    """Which subnets of each stream may be under way on a stage that takes part in some."""
    return [
        build_admission(
            pipeline.policy,
            len(stream.subnets),
            window=pipeline.wiring.of(number).window or plan.window,
            bulk=pipeline.bulk,
            stages=plan.streams[number].partitions[0].num_stages,
            steps=pipeline.steps,
            takes_part=number in streams,
        )
        for number, stream in enumerate(pipeline.streams)
    ]


def chosen_plan(
    pipeline: Pipeline, execution: Execution, sizes: Sizes | None, timing: Timing
) -> Plan:
    """The plan of a run: what is left to ``auto`` is simulated, on each stream's first subnets.

    Of the order, the fastest of the paper's and those with priorities; a tie goes to the paper's.
    Of the partition, ``rotated`` where that is :data:`WORTH` the moves, by its latest starts;
    with a memory budget it is ``balanced``, which keeps layers near their users. Lags count as
    grown: most of a stream comes behind that. Budgets are left out: they hardly change which order
    is the fastest, and simulating what they swap takes four times as long.

    Args:
        pipeline: what is to be run.
        execution: what the user asked for.
        sizes: of every layer; needed where there is a memory budget.
        timing: what everything takes, under a plan of the memory.

    Raises:
        ConfigError: as :func:`naspipe.sim.pipeline.plan_pipeline` does.
    """
    backward = _backward(pipeline, execution)
    if backward == "split":
        pipeline = pipeline.splitting(math.inf)
    best = _chosen(pipeline, execution, sizes, timing)
    # Where a step waits for all its gradients, what is owed runs before a gate of which the
    # simulation knows nothing.
    if backward != AUTO or best.takes_ns is None or pipeline.steps.is_gated:
        return best.plan
    split = pipeline.splitting(SPLIT_DEARER)
    wanted_ns = (
        best.takes_ns / SPLIT_WORTH / (1.0 + _share_of_proofs(pipeline, split, execution.workers))
    )
    if split == pipeline or _least_ns(split, execution.workers) > wanted_ns:
        return best.plan
    settled = execution.changed(order=best.plan.order, partition=best.partition)
    found = _chosen(split, settled, sizes, timing)
    is_faster = found.takes_ns is not None and found.takes_ns < wanted_ns
    return found.plan if is_faster else best.plan


def _backward(pipeline: Pipeline, execution: Execution) -> str:
    """The backward that the user asked for, or ``whole`` where it does not apply.

    The simulations that decide for ``auto`` leave memory budgets out.
    """
    backward = execution.pipeline.backward
    is_undecided = backward == AUTO and execution.memory.budget
    return backward if pipeline.is_causal and not is_undecided else "whole"


def _share_of_proofs(pipeline: Pipeline, split: Pipeline, workers: int) -> float:
    """How much work the proofs of split backwards add, as a share of the work of all subnets.

    On each stage the first backward of each candidate runs both whole and split, once for all
    blocks of a kind that are there. Few subnets of many candidates do not make up for that.
    """
    proofs_ns, work_ns = 0, 0
    for stream, own in zip(pipeline.streams, split.streams, strict=True):
        costs = stream.costs.costs if stream.costs else {}
        uses = Counter(place for each in stream.subnets for place in enumerate(each.chain))
        known = {place: count for place, count in uses.items() if place in costs}
        work_ns += sum(count * costs[place].total_ns for place, count in known.items())
        kinds = stream.chain.kinds or range(len(stream.chain.rules))
        proven = Counter(
            (kinds[block], option)
            for block, option in known
            if (block, option) in own.split and costs[block, option].inputs_ns
        )
        for place, blocks in proven.items():
            cost = costs[place]
            proofs_ns += min(workers, blocks) * (cost.inputs_ns + cost.weights_ns)
    return proofs_ns / max(1, work_ns)


class _Chosen(NamedTuple):
    """A plan, and what the simulation of the streams' beginnings says of it."""

    plan: Plan
    partition: str
    takes_ns: int | None
    """None where nothing was simulated."""


def _chosen(
    pipeline: Pipeline, execution: Execution, sizes: Sizes | None, timing: Timing
) -> _Chosen:
    """See :func:`chosen_plan`; backwards are as the pipeline says."""
    plan = plan_pipeline(pipeline, execution, sizes)
    way = execution.pipeline
    may_rotate = _may_rotate(pipeline, execution)
    is_open = AUTO in (way.order, way.backward) or may_rotate
    if not is_open or not has_choice(pipeline, execution):
        return _Chosen(plan, way.partition, None)
    preview = _Preview(pipeline, execution, timing(pipeline, plan.memory))
    first = preview.beginning(plan)
    orders = (plan.order, *RANKINGS) if way.order == AUTO else (plan.order,)
    took = {order: preview.takes_ns(first, order) for order in orders}
    best = min(orders, key=took.__getitem__)
    partition, fastest = way.partition, took[best]
    if may_rotate:
        partition = "balanced"
        asked = execution.changed(partition=ROTATED)
        order = LATEST_START if way.order == AUTO else best
        rotated = plan_pipeline(preview.pipeline, asked, sizes)
        goes_round = any(cut.stages for each in rotated.streams for cut in each.partitions)
        turning = preview.takes_ns(rotated, order) if goes_round else 0
        if turning and (gain := fastest / turning) > WORTH:
            partition, fastest = ROTATED, turning
            note = f"partition=auto: rotated, simulated {gain:.2f} times as fast as balanced"
            plan, best = replace(plan_pipeline(pipeline, asked, sizes), chosen=note), order
    return _Chosen(_ranked(plan, best, pipeline), partition, fastest)


def _may_rotate(pipeline: Pipeline, execution: Execution) -> bool:
    """Whether layers may go round, if that is faster.

    Orders for comparison stand for systems in which the first block is on the first stage.
    """
    way = execution.pipeline
    is_asked = way.partition == AUTO and way.order in (AUTO, "paper", *RANKINGS)
    return is_asked and not execution.memory.budget and not pipeline.steps.probes


def _ranked(plan: Plan, order: str, pipeline: Pipeline) -> Plan:
    return plan if order == plan.order else RANKINGS[order](plan, pipeline)


def _num_shown(pipeline: Pipeline) -> int:
    """Subnets of each stream that are simulated: whole steps."""
    size = pipeline.steps.passes
    return max(1, PREVIEW_SUBNETS // size) * size


def _beginning(pipeline: Pipeline) -> Pipeline:
    """The first subnets of all streams, with the lags that they have later on."""
    shown = _num_shown(pipeline)
    streams = with_grown_lags(pipeline).streams
    return replace(
        pipeline, streams=tuple(replace(each, subnets=each.subnets[:shown]) for each in streams)
    )


def _least_ns(pipeline: Pipeline, workers: int) -> float:
    """How long the beginning takes in any schedule: no less than its trained streams."""
    bounds = [
        causal_bound(stream.subnets, stream.chain.rules, stream.costs, pipeline.steps)
        for number, stream in enumerate(_beginning(pipeline).streams)
        if stream.costs is not None and pipeline.wiring.of(number).is_trained
    ]
    return side_by_side(bounds).least_makespan_ns(workers) if bounds else 0.0


class _Preview:
    """Simulates the beginning of all streams, as if they ended there."""

    def __init__(self, pipeline: Pipeline, execution: Execution, timing: Costs) -> None:
        self.pipeline = _beginning(pipeline)
        self._shown = _num_shown(pipeline)
        self._execution, self._timing = execution, timing

    def beginning(self, plan: Plan) -> Plan:
        """The same plan of these subnets."""
        streams = [replace(each, planned=each.planned[: self._shown]) for each in plan.streams]
        return replace(plan, streams=tuple(streams))

    def takes_ns(self, plan: Plan, order: str) -> int:
        """How long they take, without a memory budget."""
        ranked = replace(_ranked(plan, order, self.pipeline), memory=None)
        return simulate_run(self.pipeline, ranked, self._execution, self._timing).makespan_ns


def measured_timing(
    pipeline: Pipeline, execution: Execution, memory: MemoryPlan | None
) -> StreamCosts:
    """Each stream's costs, with copies at the emulated device's bandwidth and latency."""
    return StreamCosts(
        [
            table_timing(stream.costs, execution, memory)
            for stream in pipeline.streams
            if stream.costs is not None
        ]
    )


def table_timing(
    costs: CostTable,
    execution: Execution,
    memory: MemoryPlan | None,
    parameters: Callable[[int, int], int] = lambda block, candidate: 0,
) -> TableCosts:
    """Measured costs, with copies at the emulated device's bandwidth and latency.

    ``parameters`` says how many a layer has, by block and candidate: what moves between stages.
    """

    def state_bytes(layer: LayerId) -> int:
        if memory is None:
            return 0
        return memory.sizes.of(layer.block, layer.candidate, layer.stream).state_bytes

    return TableCosts(
        table=costs,
        state_bytes=state_bytes,
        pushed_bytes=lambda layer: 4 * parameters(layer.block, layer.candidate),
        bytes_per_ns=execution.hardware.bandwidth / 1e9,
        copy_latency_ns=int(execution.hardware.latency * 1e9),
        pause_ns=PAUSE_NS,
        parcel_ns=PARCEL_NS,
    )
