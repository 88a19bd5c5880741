"""Where the blocks of a blockwise distillation could be: every placement, simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from naspipe.api.planning import make_pipeline, make_plan, measured_costs
from naspipe.checks.sketched import measure_sizes
from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Follows
from naspipe.config.steps import parse_passes
from naspipe.config.wiring import Wiring
from naspipe.data.views import Views
from naspipe.distill.joined import join
from naspipe.distill.taught import Taught, carried_out, forward_ns, forward_ratio, passes_to_fill
from naspipe.distill.teachers import MakesTeacher
from naspipe.inputs.subnet_sources import draw_stream
from naspipe.jobs.workload import Workload, wiring_of
from naspipe.plan.costs import CostTable, SizeTable
from naspipe.plan.joint_placements import Pieces, moved_bytes
from naspipe.plan.pipeline import Plan, as_planned
from naspipe.plan.simulation import measured_timing, simulate_run
from naspipe.store.metrics import Summary

PLACEMENTS = ("free", "pairs", "packed", "layers")
DEALING = ("hybrid", "shared")
"""Those that deal the passes of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwisePlan:
    """One placement on some stages."""

    passes: str
    """Of a step, as the recipe says it."""
    stages: int
    placement: str
    blocks: tuple[str, ...]
    """Of each stage: ``T0`` is the teacher's first block, ``S0`` its student; with ``/n`` where n
    stages share it, with ``*`` where only some of its layers are there."""
    order: str
    steps_per_second: float
    bubble_ratio: float
    moved_bytes: int
    """From stage to stage in a step."""
    memory_bytes: int
    """The most that one stage's layers occupy, and outputs of the teacher that wait there."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def blockwise_plans(
    define: Callable[[str], Taught],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[BlockwisePlan]:
    """Every kind of steps on every number of devices, in every placement, the fastest first.

    ``define`` makes the streams by what their steps are made of.
    """
    found: list[BlockwisePlan] = []
    for kind in kinds:
        taught = define(kind)
        costs = measured_costs(taught.workloads, execution)
        sizes = [measure_sizes(each) for each in taught.workloads]
        for stages in devices:
            for placement in _possible_blockwise(taught, stages):
                how = execution.changed(stages=stages, partition=placement)
                try:
                    found.append(_simulated_blockwise(taught, costs, sizes, how))
                except ConfigError:
                    continue  # more stages than it has pieces for
    return sorted(found, key=lambda each: (-each.steps_per_second, each.stages, each.moved_bytes))


def _possible_blockwise(taught: Taught, stages: int) -> Iterator[str]:
    """The placements that make a difference on this many stages."""
    if stages == 1:
        yield "free"
        return
    yield from PLACEMENTS
    if taught.workloads[0].recipe.steps.passes > 1:
        yield from DEALING


def _simulated_blockwise(
    taught: Taught, costs: Sequence[CostTable], sizes: Sequence[SizeTable], execution: Execution
) -> BlockwisePlan:
    workloads = taught.workloads
    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(workloads)]
    wiring = wiring_of(workloads, taught.taps)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring)
    plan = make_plan(workloads, execution, subnets, costs, wiring)
    timing = measured_timing(as_planned(pipeline, plan), execution, plan.memory)
    summary = simulate_run(pipeline, plan, execution, timing).summary
    passes = pipeline.steps.passes
    placed = [[each.partition for each in own.planned[:passes]] for own in plan.streams]
    output_bytes = tuple(each.output_bytes for each in workloads)
    pieces = Pieces(((),) * len(workloads), wiring, output_bytes, passes)
    stages = [StageId(number) for number in range(execution.pipeline.stages)]
    steps = len(subnets[0]) / passes
    return BlockwisePlan(
        passes=workloads[0].recipe.passes,
        stages=len(stages),
        placement=execution.pipeline.partition,
        blocks=tuple(" ".join(_named(workloads, placed, stage)) for stage in stages),
        order=plan.order,
        steps_per_second=steps / summary.seconds if summary.seconds else 0.0,
        bubble_ratio=summary.bubble_ratio,
        moved_bytes=moved_bytes(placed, pieces),
        memory_bytes=max(_memory(workloads, sizes, placed, stage) for stage in stages),
    )


def _named(
    workloads: Sequence[Workload], placed: Sequence[Sequence[Partition]], stage: StageId
) -> Iterator[str]:
    count = len(workloads) // 2
    for number, own in enumerate(placed):
        here = [each for each in own if each.blocks(stage)]
        if here:
            name = f"S{number}" if number < count else f"T{number - count}"
            is_part = len(here[0].blocks(stage)) < here[0].num_blocks
            shared = len({each.bounds for each in own})
            yield name + ("*" if is_part else "") + (f"/{shared}" if shared > 1 else "")


def _memory(
    workloads: Sequence[Workload],
    sizes: Sequence[SizeTable],
    placed: Sequence[Sequence[Partition]],
    stage: StageId,
) -> int:
    """The bytes of all candidates on a stage, and of the teacher's outputs that wait there."""
    total = 0
    for workload, table, own in zip(workloads, sizes, placed, strict=True):
        blocks = {block for each in own for block in each.blocks(stage)}
        for block in blocks:
            layers = range(len(workload.space.blocks[block].candidates))
            total += sum(table.of(block, layer).state_bytes for layer in layers)
        if blocks and not workload.is_trained:
            total += (workload.window or 1) * workload.output_bytes
    return total


ROUNDING = 1e-9
"""Relative: so much more than a whole number of teachers is that number."""


def teachers_needed(student_rate: float, teacher_rate: float) -> int:
    """The fewest teachers, all alike, that never let the student wait: n = ceil(t_s / t_t)."""
    _check(student_rate, teacher_rate)
    return max(1, math.ceil(student_rate / teacher_rate * (1 - ROUNDING)))


def busy_share(teachers: int, student_rate: float, teacher_rate: float) -> float:
    """The student's rate over its rate without a teacher: min(1, n * t_t / t_s)."""
    _check(student_rate, teacher_rate)
    return min(1.0, teachers * teacher_rate / student_rate)


def online_rate(student_rate: float, forward_rate: float) -> float:
    """Batches per second if the student's device runs the teacher's forwards as well."""
    _check(student_rate, forward_rate)
    return 1.0 / (1.0 / student_rate + 1.0 / forward_rate)


def _check(student_rate: float, teacher_rate: float) -> None:
    for name, rate in (("student", student_rate), ("teacher", teacher_rate)):
        if not 0 < rate < math.inf:
            raise ConfigError(f"{name}: expected a rate above 0, found {rate}")


CUTS = ("own", "joint")
"""Where a teacher may be cut: where it is balanced by itself, or where the student is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtPlan:
    """One way to train a student with its teacher."""

    passes: str
    """Of a step, as the recipe says it."""
    views: int
    """Of each sample."""
    stages: int
    cuts: str
    """One of :data:`CUTS`."""
    ratio: float
    """The teacher's forward over the student's."""
    filled_from: int | None
    """Passes of a step from which on the teacher fills the pipeline; None for one of the same step,
    which never does."""
    is_filled: bool
    """Whether steps have as many."""
    order: str
    passes_per_second: float
    """The student's."""
    bubble_ratio: float
    teachers: int | None
    """That make labels as fast as the student takes them if it is alone on its stages, each with a
    device of its own; None for one that follows, which makes no labels ahead of the student."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def taught_plans(
    define: Callable[[str], Workload],
    teacher: Callable[[], MakesTeacher | None],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[TaughtPlan]:
    """Every kind of steps on every number of devices, with every cut, the fastest first.

    ``define`` makes the student by what its steps are made of, ``teacher`` a new teacher for each.

    Raises:
        ConfigError: for a teacher that does not fit, or steps that the data do not allow.
    """
    found: list[TaughtPlan] = []
    for kind in kinds:
        student = define(kind)
        taught = join([student], execution, teacher=teacher())
        costs = measured_costs(taught.workloads, execution)
        for stages in devices:
            needed = _teachers(taught.workloads, costs, execution.changed(stages=stages))
            for cuts in _possible_taught(taught, stages):
                how = execution.changed(stages=stages, teacher_cuts=cuts)
                found.append(_simulated_taught(carried_out(taught, how), costs, how, needed))
    return sorted(found, key=lambda each: (-each.passes_per_second, each.stages, each.cuts))


def for_passes(workload: Workload, passes: str, make: Callable[[int], Workload]) -> Workload:
    """The workload, or one that ``make`` makes, with as many micro-batches as such steps need."""
    data, count = workload.data, parse_passes(passes).passes
    if not isinstance(data, Views) or count % (data.views + data.local) or count == data.passes:
        return workload
    return make(count // (data.views + data.local))


def _possible_taught(taught: Taught, stages: int) -> Iterator[str]:
    """The cuts that make a difference on this many stages."""
    student, teacher = taught.workloads
    if stages > len(student.space):
        return
    if teacher.follows is None and stages <= len(teacher.space):
        yield "own"
    if teacher.follows is not None or stages > 1:
        yield "joint"


def _teachers(
    workloads: Sequence[Workload], costs: Sequence[CostTable], execution: Execution
) -> int | None:
    """The teachers needed, from the rates of the student alone and of one teacher alone."""
    student, teacher = workloads
    label_ns = forward_ns(teacher, costs[1])
    if teacher.follows is not None or execution.pipeline.stages > len(student.space):
        return None
    subnets = [draw_stream(StreamId(0), student)]
    _, summary = _run([student], subnets, costs[:1], wiring_of([student], ()), execution)
    if not label_ns or not summary.seconds:
        return None
    return teachers_needed(len(subnets[0]) / summary.seconds, 1e9 / label_ns)


def _run(
    workloads: Sequence[Workload],
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable],
    wiring: Wiring,
    execution: Execution,
) -> tuple[Plan, Summary]:
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring)
    plan = make_plan(workloads, execution, subnets, costs, wiring)
    timing = measured_timing(as_planned(pipeline, plan), execution, plan.memory)
    return plan, simulate_run(pipeline, plan, execution, timing).summary


def _simulated_taught(
    taught: Taught, costs: Sequence[CostTable], execution: Execution, teachers: int | None
) -> TaughtPlan:
    student, teacher = taught.workloads
    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(taught.workloads)]
    wiring = wiring_of(taught.workloads, taught.taps)
    plan, summary = _run(taught.workloads, subnets, costs, wiring, execution)
    stages, passes = execution.pipeline.stages, student.recipe.steps.passes - len(teacher.left_out)
    ratio = forward_ratio(taught.workloads, costs) or 0.0
    is_ahead = not any(isinstance(r, Follows) and not r.steps for r in teacher.space.rules)
    needed = passes_to_fill(ratio, stages) if is_ahead or stages == 1 else None
    return TaughtPlan(
        passes=student.recipe.passes,
        views=student.data.views if isinstance(student.data, Views) else 1,
        stages=stages,
        cuts="joint" if teacher.cut_like is not None or teacher.follows is not None else "own",
        ratio=ratio,
        filled_from=needed,
        is_filled=needed is not None and passes >= needed,
        order=plan.order,
        passes_per_second=len(subnets[0]) / summary.seconds if summary.seconds else 0.0,
        bubble_ratio=summary.bubble_ratio,
        teachers=teachers,
    )


def with_passes(workload: Workload, passes: str, steps: int, seed: int) -> Workload:
    """The workload in steps of such passes, with about this many passes in all."""
    recipe = replace(workload.recipe, passes=passes)
    count = recipe.settled(workload.space.drawn_counts).steps.passes
    return workload.redefined(recipe=recipe, steps=max(1, steps // count), seed=seed)
