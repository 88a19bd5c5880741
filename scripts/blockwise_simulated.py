"""Blockwise distillation on the virtual clock: how long a step takes, by who computes what.

A step is that of all blocks on one batch. Messages take nothing. What a batch in several parts
costs more than a whole one is ``overhead``: a part of a step's time that a smaller batch does not
save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import lcm

from naspipe.config.execution import Execution
from naspipe.config.ids import SequenceId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.joint_placements import Pieces, on_one_stage, register_joint_placement
from naspipe.plan.pipeline import Pipeline, plan_pipeline
from naspipe.plan.simulation import simulate_run
from naspipe.plan.virtual_costs import StreamCosts, TableCosts
from scripts.blockwise_costs import BlockCost

STEP_NS = 1_000_000
"""A step of all blocks on one stage."""
STEPS = 16
"""Of the shorter of two runs, whose difference is what steps take once the pipeline is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How blocks are trained."""

    stages: int
    placement: str = "free"
    window: int = 4
    is_relayed: bool = True
    """Otherwise each student has the teacher's blocks up to its own for itself."""
    rank: int = -1
    """Of the teacher's blocks, beside the students' 0."""
    has_barrier: bool = False
    """Whether no block begins a step before all are through the one before."""
    passes: int = 1
    """Of a step."""
    overhead: float = 0.0

    @property
    def pass_cost(self) -> float:
        """Of one of the step's passes, over the whole batch at once."""
        return self.overhead + (1 - self.overhead) / self.passes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was simulated."""

    step: float
    """Steps of all blocks on one stage are 1."""
    bubble: float
    most_outputs: int = 0


def step_of(costs: Sequence[BlockCost], way: Way) -> Outcome:
    """A step once the pipeline is full; work that a way does twice counts as busy."""
    shares = [way.pass_cost] * len(costs)
    return _simulated(costs, way, shares)


def with_barrier(costs: Sequence[BlockCost], way: Way) -> Outcome:
    """Teacher relaying with a barrier, cut where that is fastest (TR)."""

    def slowest(cuts: Sequence[int]) -> float:
        spans = pairwise([0, *cuts, len(costs)])
        teacher = [sum(each.teacher for each in costs[:end]) for end in range(len(costs) + 1)]
        return max(
            teacher[high] + 3 * sum(sum(each.student) for each in costs[low:high])
            for low, high in spans
        )

    ends = [*min(combinations(range(1, len(costs)), way.stages - 1), key=slowest), len(costs)]

    def placed(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
        found: list[list[Partition]] = [[] for _ in pieces.costs]
        for number, pair in enumerate(pieces.pairs):
            stage = next(stage for stage, end in enumerate(ends) if number < end)
            for stream in pair:
                found[stream] = [on_one_stage(stage, len(pieces.costs[stream]), num_stages)]
        return found

    register_joint_placement("relayed", placed)
    return step_of(costs, replace(way, placement="relayed", has_barrier=True))


def in_turn(costs: Sequence[BlockCost], way: Way) -> Outcome:
    """Block after block, each on all stages, which share the batch (DP)."""
    steps = []
    for number in range(len(costs)):
        own = [BlockCost(sum(each.teacher for each in costs[: number + 1]), costs[number].student)]
        steps.append(_simulated(own, way, [way.pass_cost], scale=_total(costs)).step)
    return Outcome(sum(steps), 0.0)


def grouped(costs: Sequence[BlockCost], way: Way) -> Outcome:
    """Consecutive pairs on groups of stages, whose sizes make the slowest group fastest (AHD)."""

    def cost(group: tuple[int, int, int]) -> float:
        first, end, size = group
        own = sum(each.total for each in costs[first:end])
        return own * (way.overhead + (1 - way.overhead) / size)

    groups = min(_groupings(len(costs), way.stages), key=lambda all_: max(map(cost, all_)))
    passes = lcm(*(size for *_, size in groups))
    shares = [
        (way.overhead + (1 - way.overhead) / size) * size / passes
        for first, end, size in groups
        for _ in range(first, end)
    ]

    def placed(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
        found: list[list[Partition]] = [[] for _ in pieces.costs]
        begin = 0
        for first, end, size in groups:
            for stream in (each for pair in pieces.pairs[first:end] for each in pair):
                found[stream] = [
                    on_one_stage(
                        begin + number * size // passes, len(pieces.costs[stream]), num_stages
                    )
                    for number in range(passes)
                ]
            begin += size
        return found

    register_joint_placement("grouped", placed)
    own = Way(stages=way.stages, placement="grouped", passes=passes)
    return _simulated(costs, own, shares)


def _groupings(blocks: int, stages: int) -> list[tuple[tuple[int, int, int], ...]]:
    """First block, end and stages of each group, every way."""
    found = []
    for count in range(1, min(blocks, stages) + 1):
        for cuts in combinations(range(1, blocks), count - 1):
            for sizes in combinations(range(1, stages), count - 1):
                ends, members = [0, *cuts, blocks], [0, *sizes, stages]
                spans = zip(pairwise(ends), pairwise(members), strict=True)
                found.append(tuple((low, high, b - a) for (low, high), (a, b) in spans))
    return found


def _total(costs: Sequence[BlockCost]) -> float:
    return sum(each.total for each in costs)


def _simulated(
    costs: Sequence[BlockCost], way: Way, shares: Sequence[float], scale: float = 0.0
) -> Outcome:
    unit = STEP_NS / (scale or _total(costs))
    shorter, longer = (_run(costs, way, shares, unit, steps) for steps in (STEPS, 2 * STEPS))
    step_ns = (longer[0] - shorter[0]) / STEPS
    busy_ns = (longer[1] - shorter[1]) / STEPS
    return Outcome(step_ns / STEP_NS, 1 - busy_ns / (way.stages * step_ns))


def _run(
    costs: Sequence[BlockCost], way: Way, shares: Sequence[float], unit: float, steps: int
) -> tuple[int, int]:
    """How long it takes, and how long stages work, together."""
    pipeline = pipeline_of(costs, way, shares, unit, steps)
    execution = Execution().changed(stages=way.stages, partition=way.placement, order="paper")
    plan = plan_pipeline(pipeline, execution)
    tables = (stream.costs for stream in pipeline.streams)
    timing = StreamCosts([TableCosts(table=each, link_ns=0) for each in tables if each])
    found = simulate_run(pipeline, plan, execution, timing)
    return found.makespan_ns, int((found.columns.end_ns - found.columns.start_ns).sum())


def pipeline_of(
    costs: Sequence[BlockCost], way: Way, shares: Sequence[float], unit: float, steps: int
) -> Pipeline:
    """A student stream for each block, and behind them the teacher's."""
    count = len(costs)
    students = [
        [_cost(unit * share * layer, is_trained=True) for layer in each.student]
        for each, share in zip(costs, shares, strict=True)
    ]
    alone = [_cost(unit * s * each.teacher) for each, s in zip(costs, shares, strict=True)]
    teachers = (
        [[each] for each in alone] if way.is_relayed else [alone[: n + 1] for n in range(count)]
    )
    window = (1 if way.has_barrier else way.window) * way.passes
    behind = StreamWiring(is_trained=False, rank=way.rank, window=window, lingers=way.has_barrier)
    wiring = Wiring(
        streams=(StreamWiring(window=window),) * count + (behind,) * count,
        taps=tuple(_taps([len(each) for each in students], way.is_relayed)),
    )
    streams = [
        Stream(
            Chain(
                rules=(Exact(),) * len(own),
                is_shared=(True,) * len(own),
                buffered=frozenset(),
            ),
            tuple(
                Subnet(StreamId(number), SequenceId(y), (0,) * len(own))
                for y in range(steps * way.passes)
            ),
            CostTable({(block, 0): cost for block, cost in enumerate(own)}),
        )
        for number, own in enumerate((*students, *teachers))
    ]
    return Pipeline(
        streams=tuple(streams),
        steps=Steps(way.passes) if way.passes > 1 else ONE_PASS,
        wiring=wiring,
    )


def _cost(forward_ns: float, is_trained: bool = False) -> LayerCost:
    return LayerCost(int(forward_ns), int(2 * forward_ns) if is_trained else 0, 0)


def _taps(lengths: Sequence[int], is_relayed: bool) -> list[Tap]:
    """What a block of the teacher makes is a lesson, and what the next blocks are called with."""
    count, found = len(lengths), []
    for number, length in enumerate(lengths):
        own = StreamId(count + number)
        source = (own, 0 if is_relayed else number)
        found.append(Tap(source, (StreamId(number), length - 1), TapRole.LESSON))
        if is_relayed and number + 1 < count:
            found.append(Tap(source, (StreamId(count + number + 1), 0), TapRole.INPUT))
            found.append(Tap(source, (StreamId(number + 1), 0), TapRole.INPUT))
        elif not is_relayed and number:
            found.append(Tap((own, number - 1), (StreamId(number), 0), TapRole.INPUT))
    return found
