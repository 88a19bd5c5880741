"""Simulates whole runs on the virtual clock, from streams and costs to access logs and figures.

``simulate_run`` executes a plan. ``chosen_plan`` simulates the beginning of the streams to choose
the settings that the user left to ``auto``, and ``outcome_of`` computes the figures that commands
print.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import Access, LayerId, StageId, StreamId
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.engine.history import participants
from naspipe.plan.bounds import CausalBound, causal_bound, side_by_side
from naspipe.plan.costs import CostTable
from naspipe.plan.memory import MemoryPlan, Sizes, residency_of
from naspipe.plan.pipeline import (
    RANKINGS,
    Pipeline,
    Plan,
    has_choice,
    plan_pipeline,
    with_grown_lags,
)
from naspipe.plan.virtual_costs import PARCEL_NS, PAUSE_NS, Costs, StreamCosts, TableCosts
from naspipe.plan.virtual_driver import Admitted, KnownPasses, VirtualClock, simulate_into
from naspipe.store.access_columns import (
    BACKWARD,
    FORWARD,
    AccessColumns,
    Integers,
    from_accesses,
    joined,
)
from naspipe.store.metrics import Summary, summarize

PREVIEW_SUBNETS = 100
"""Number of subnets of each stream that are simulated to choose settings left to ``auto``."""

AUTO, ROTATED, LATEST_START = "auto", "rotated", "latest-start"

WORTH = 1.03
"""Minimum simulated speed-up for moving layers between stages; smaller gains are within the error
of simulations."""

_PART = 4096
"""Number of accesses that are held as tuples at a time."""

Timing = Callable[[Pipeline, MemoryPlan | None], Costs]

SPLIT_DEARER = 1.15
"""Candidates are split if both parts of their backward together take at most this many times as
long as the whole one."""

SPLIT_WORTH = 1.01
"""Minimum speed-up for splitting backwards."""


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a simulation."""

    plan: Plan
    columns: AccessColumns = field(repr=False)
    """The accesses in the order in which they ended, without digests."""
    num_stages: int
    layer_bytes: tuple[int, ...]
    """Peak bytes of the layers of each stage; empty without a memory budget."""

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.columns, self.num_stages)

    @property
    def makespan_ns(self) -> int:
        return int(self.columns.end_ns.max())

    @cached_property
    def accesses(self) -> list[Access]:
        """The same as tuples, which need five times as much memory."""
        return list(self.columns.accesses())


def simulate_run(
    pipeline: Pipeline,
    plan: Plan,
    execution: Execution,
    timing: Costs,
    clock: VirtualClock | None = None,
) -> SimulatedRun:
    """Run a pipeline under a plan to its end. The function is pure and deterministic.

    Args:
        pipeline: the streams, and their policy.
        plan: see :func:`naspipe.plan.pipeline.plan_pipeline`; may be that of longer streams.
        execution: stages, prefetching and whether forwards start partly clear.
        timing: the duration of everything.
        clock: a new clock, if ``timing`` has to read it.

    Raises:
        InvariantError: if the schedule stops before its end, which is a bug.
    """
    stages = [StageId(stage) for stage in range(execution.workers)]
    rules = [stream.chain.rules for stream in pipeline.streams]
    steps, lengths = pipeline.steps, list(map(len, rules))
    history = new_history(rules, pipeline.wiring, steps=steps, buffered=plan.buffered)
    partitions = [{each.partition for each in stream.planned} for stream in plan.streams]
    takers = participants(partitions, pipeline.wiring, execution.workers)
    taken_part = [
        [number for number, taking in enumerate(takers) if stage in taking] for stage in stages
    ]
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
            steps=steps,
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

    parts: list[AccessColumns] = []
    latest: list[Access] = []

    def record(access: Access) -> None:
        latest.append(access)
        if len(latest) == _PART:
            parts.append(from_accesses(latest))
            latest.clear()

    admissions = (
        [
            build_admission(
                pipeline.policy,
                len(stream.subnets),
                window=pipeline.wiring.of(number).window or plan.window,
                bulk=pipeline.bulk,
                stages=plan.streams[number].partitions[0].num_stages,
                steps=steps,
                takes_part=number in streams,
            )
            for number, stream in enumerate(pipeline.streams)
        ]
        for streams in taken_part
    )
    known = KnownPasses(steps, lengths) if steps.probes else None
    simulate_into(record, admitted, controllers, timing, lambda: next(admissions), clock, known)
    peaks = tuple(manager.ledger.peak_bytes for manager in managers if manager is not None)
    columns = joined([*parts, from_accesses(latest)])
    return SimulatedRun(plan, columns, execution.workers, peaks)


def chosen_plan(
    pipeline: Pipeline, execution: Execution, sizes: Sizes | None, timing: Timing
) -> Plan:
    """Return the plan of a run; simulate each stream's first subnets to choose ``auto`` settings.

    For the order, choose the fastest of the paper's order and those with priorities; a tie goes to
    the paper's order. For the partition, choose ``rotated``, with its latest starts, if its
    speed-up exceeds :data:`WORTH`, which pays for the moves; with a memory budget choose
    ``balanced``, which keeps layers near their users. Lags count as fully grown, because most of a
    stream runs that way. Memory budgets are ignored: they hardly change which order is the fastest,
    and simulating the swapping takes four times as long.

    Raises:
        ConfigError: see :func:`naspipe.plan.pipeline.plan_pipeline`.
    """
    backward = execution.pipeline.backward
    # The simulations that decide for ``auto`` ignore memory budgets.
    if not pipeline.is_causal or (backward == AUTO and execution.memory.budget):
        backward = "whole"
    if backward == "split":
        pipeline = pipeline.splitting(math.inf)
    best = _chosen(pipeline, execution, sizes, timing)
    # If a step waits for all its gradients, deferred parts of backwards run before a gate that the
    # simulation does not model.
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


def _share_of_proofs(pipeline: Pipeline, split: Pipeline, workers: int) -> float:
    """Return the extra work of verifying split backwards, as a share of the work of all subnets.

    On each stage the first backward of each candidate runs both whole and split, once for all
    blocks of a kind on that stage. A few subnets with many candidates do not make up for that.
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
    """A plan, and the time of the beginning of the streams under it."""

    plan: Plan
    partition: str
    takes_ns: int | None
    """None if nothing was simulated."""


def _chosen(
    pipeline: Pipeline, execution: Execution, sizes: Sizes | None, timing: Timing
) -> _Chosen:
    """See :func:`chosen_plan`; whether backwards are split is fixed by the pipeline."""
    plan = plan_pipeline(pipeline, execution, sizes)
    way = execution.pipeline
    # Orders for comparison emulate systems in which the first block is on the first stage.
    may_rotate = (
        way.partition == AUTO
        and way.order in (AUTO, "paper", *RANKINGS)
        and not execution.memory.budget
        and not pipeline.steps.probes
    )
    is_open = AUTO in (way.order, way.backward) or may_rotate
    if not is_open or not has_choice(pipeline, execution):
        return _Chosen(plan, way.partition, None)
    beginning, costs = _beginning(pipeline), timing(pipeline, plan.memory)

    def takes_ns(plan: Plan, order: str) -> int:
        """Return the time of the beginning as a complete run, with unlimited memory."""
        ranked = replace(_ranked(plan, order, beginning), memory=None)
        return simulate_run(beginning, ranked, execution, costs).makespan_ns

    streams = [
        replace(own, planned=own.planned[: len(stream.subnets)])
        for own, stream in zip(plan.streams, beginning.streams, strict=True)
    ]
    first = replace(plan, streams=tuple(streams))
    orders = (plan.order, *RANKINGS) if way.order == AUTO else (plan.order,)
    took = {order: takes_ns(first, order) for order in orders}
    best = min(orders, key=took.__getitem__)
    partition, fastest = way.partition, took[best]
    if may_rotate:
        partition = "balanced"
        asked = execution.changed(partition=ROTATED)
        order = LATEST_START if way.order == AUTO else best
        rotated = plan_pipeline(beginning, asked, sizes)
        goes_round = any(cut.stages for each in rotated.streams for cut in each.partitions)
        turning = takes_ns(rotated, order) if goes_round else 0
        if turning and (gain := fastest / turning) > WORTH:
            partition, fastest = ROTATED, turning
            note = f"partition=auto: rotated, simulated {gain:.2f} times as fast as balanced"
            plan, best = replace(plan_pipeline(pipeline, asked, sizes), chosen=note), order
    return _Chosen(_ranked(plan, best, pipeline), partition, fastest)


def _ranked(plan: Plan, order: str, pipeline: Pipeline) -> Plan:
    return plan if order == plan.order else RANKINGS[order](plan, pipeline)


def _beginning(pipeline: Pipeline) -> Pipeline:
    """Return the first subnets of all streams, with lags that have already grown."""
    size = pipeline.steps.passes
    shown = max(1, PREVIEW_SUBNETS // size) * size  # whole steps
    streams = with_grown_lags(pipeline).streams
    return replace(
        pipeline, streams=tuple(replace(each, subnets=each.subnets[:shown]) for each in streams)
    )


def _least_ns(pipeline: Pipeline, workers: int) -> float:
    """Return a lower bound of the time that any schedule needs for the beginning."""
    bounds = [
        causal_bound(stream.subnets, stream.chain.rules, stream.costs, pipeline.steps)
        for number, stream in enumerate(_beginning(pipeline).streams)
        if stream.costs is not None and pipeline.wiring.of(number).is_trained
    ]
    return side_by_side(bounds).least_makespan_ns(workers) if bounds else 0.0


def measured_timing(
    pipeline: Pipeline, execution: Execution, memory: MemoryPlan | None
) -> StreamCosts:
    """Return each stream's costs, with copies at the emulated device's bandwidth and latency."""
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
    """Return measured costs, with copies at the emulated device's bandwidth and latency.

    ``parameters`` returns the number of parameters of a layer, by block and candidate; these are
    sent if it moves.
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


@dataclass(frozen=True, slots=True)
class StageUse:
    """Utilization and peak memory of one stage."""

    busy: float
    """Busy share of the makespan, warm-up included."""
    layer_bytes: int
    """Peak bytes of its layers; 0 without a memory budget."""
    activation_bytes: int
    """Peak bytes kept by the passes under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of one simulated run."""

    stages: int
    order: str
    window: int
    passes_per_second: float
    bubble_ratio: float
    bound: float
    """The least bubble ratio of any schedule, see :class:`CausalBound`."""
    hit_rate: float
    stall_ratio: float
    makespan_seconds: float
    uses: tuple[StageUse, ...]

    @property
    def distance(self) -> float:
        """Bubble ratio above the bound. The bubble ratio excludes the warm-up but the bound does
        not, so it may be slightly negative for a short stream.
        """
        return self.bubble_ratio - self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; the speed is called ``steps_per_second`` in the output."""
        names = {"passes_per_second": "steps_per_second"}
        values = {names.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "distance": self.distance}


def bound_of(pipeline: Pipeline) -> CausalBound:
    parts = []
    for stream in pipeline.streams:
        if stream.costs is None:
            raise ConfigError("causal bound: expected layers of known costs, found none")
        rules = stream.chain.rules
        parts.append(causal_bound(stream.subnets, rules, stream.costs, pipeline.steps))
    return side_by_side(parts)


class BackwardBounds(NamedTuple):
    """The causal bounds of one pipeline with whole and with split backwards."""

    whole: CausalBound
    split: CausalBound


def backward_bounds(pipeline: Pipeline) -> BackwardBounds | None:
    """Return the bounds of a pipeline with whole backwards, and with ``backward=split``.

    None if backwards cannot be split in any run, or if the times of their parts are not known.
    """
    tables = [stream.costs.costs for stream in pipeline.streams if stream.costs]
    knows_parts = any(cost.split != cost for table in tables for cost in table.values())
    if not pipeline.is_causal or not knows_parts:
        return None
    return BackwardBounds(bound_of(pipeline), bound_of(pipeline.splitting(math.inf)))


def outcome_of(run: SimulatedRun, pipeline: Pipeline, bound: CausalBound) -> Outcome:
    summary = run.summary
    columns = run.columns
    makespan = int(columns.end_ns.max()) - int(columns.start_ns.min())
    worked = columns.end_ns - columns.start_ns
    sums = np.bincount(columns.stage, weights=worked, minlength=run.num_stages)
    busy = [float(value) / makespan if makespan else 0.0 for value in sums]
    held = _activation_peaks(columns, run.num_stages, pipeline)
    layers = run.layer_bytes or (0,) * run.num_stages
    return Outcome(
        stages=run.num_stages,
        order=run.plan.order,
        window=run.plan.window,
        passes_per_second=summary.passes_per_second,
        bubble_ratio=summary.bubble_ratio,
        bound=bound.bubble(run.num_stages),
        hit_rate=summary.hit_rate,
        stall_ratio=summary.stall_ratio,
        makespan_seconds=summary.seconds,
        uses=tuple(map(StageUse, busy, layers, held)),
    )


def _activation_peaks(columns: AccessColumns, num_stages: int, pipeline: Pipeline) -> list[int]:
    """Return the peak bytes held between forwards and backwards, for each stage.

    A pass without a backward holds nothing.
    """
    kind = columns.kind
    passes = columns.stream.astype(np.int64) << 40 | columns.sequence_id
    is_trained = np.isin(passes, passes[kind == BACKWARD])
    held = np.where(is_trained, _activation_bytes(columns, pipeline), 0)
    changes = np.where(kind == FORWARD, held, np.where(kind == BACKWARD, -held, 0))
    times = np.where(kind == FORWARD, columns.start_ns, columns.end_ns)
    peaks = []
    for number in range(num_stages):
        mine = np.flatnonzero(columns.stage == number)
        order = mine[np.lexsort((changes[mine], times[mine]))]
        peaks.append(int(np.cumsum(changes[order]).max(initial=0)))
    return peaks


def _activation_bytes(columns: AccessColumns, pipeline: Pipeline) -> Integers:
    """Return, for each access, the bytes that its pass keeps of its block."""
    streams, blocks, options = columns.stream, columns.block, columns.candidate.astype(np.int64)
    for number, stream in enumerate(pipeline.streams):
        if any(subnet.candidates for subnet in stream.subnets):
            # For elastic layers, the stream's options replace the layers' candidates.
            empty, here = (0,) * len(stream.chain.rules), streams == number
            chains = np.array([each.chain or empty for each in stream.subnets], np.int64)
            options[here] = chains[columns.sequence_id[here], blocks[here]]
    places = np.stack((streams, blocks, options))
    known, inverse = np.unique(places, axis=1, return_inverse=True)
    held = []
    for stream, block, candidate in known.T.tolist():
        costs = pipeline.streams[stream].costs
        held.append(costs.of(block, candidate).activation_bytes if costs else 0)
    found: Integers = np.array(held, dtype=np.int64)[inverse.reshape(-1)]
    return found
