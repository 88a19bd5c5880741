"""Plans with teachers, by simulation: placements of distilled blocks, and the teacher of a student.

:func:`blockwise_plans` compares placements of the blocks of a blockwise distillation.
:func:`taught_plans` compares ways to train a student with one teacher, which may have its own
devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from naspipe.api.planning import make_pipeline, make_plan, measured_costs
from naspipe.checks.sketched import measure_sizes
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import StageId, StreamId
from naspipe.config.partition import Partition
from naspipe.config.rules import Follows
from naspipe.config.steps import parse_passes
from naspipe.data.views import Views
from naspipe.distill.distillation import (
    Distillation,
    MakesTeacher,
    carried_out,
    forward_ns,
    forward_ratio,
    passes_to_fill,
)
from naspipe.distill.joined import join
from naspipe.inputs.subnet_sources import draw_stream
from naspipe.jobs.workload import Workload, wiring_of
from naspipe.plan.costs import CostTable, SizeTable
from naspipe.plan.joint_placements import Pieces, moved_bytes
from naspipe.plan.pipeline import Plan, as_planned
from naspipe.plan.simulation import measured_timing, simulate_run
from naspipe.store.metrics import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwisePlan:
    """One placement on a number of stages."""

    passes: str
    """The setting of the recipe."""
    stages: int
    placement: str
    blocks: tuple[str, ...]
    """The blocks on each stage: ``T0`` is the teacher's first block, ``S0`` its student; with
    ``/n`` if n stages share it, with ``*`` if only some of its layers are on this stage."""
    order: str
    steps_per_second: float
    bubble_ratio: float
    moved_bytes: int
    """Bytes sent between stages in a step."""
    memory_bytes: int
    """Maximum over the stages of the bytes of layers and of waiting teacher outputs."""


def blockwise_plans(
    define: Callable[[str], Distillation],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[BlockwisePlan]:
    """Simulate all ``kinds`` of steps and all placements on all numbers of devices, fastest first.

    ``define`` makes the streams for a kind of steps.
    """
    found: list[BlockwisePlan] = []
    for kind in kinds:
        taught = define(kind)
        costs = measured_costs(taught.workloads, execution)
        sizes = [measure_sizes(each) for each in taught.workloads]
        deals_passes = taught.workloads[0].recipe.steps.passes > 1
        for stages in devices:
            placements = ["free"]
            if stages > 1:
                placements += ["pairs", "packed", "layers"]
                placements += ["hybrid", "shared"] if deals_passes else []
            for placement in placements:
                how = execution.changed(stages=stages, partition=placement)
                try:
                    found.append(_simulated_blockwise(taught, costs, sizes, how))
                except ConfigError:
                    continue  # more stages than pieces
    return sorted(found, key=lambda each: (-each.steps_per_second, each.stages, each.moved_bytes))


def _simulated_blockwise(
    taught: Distillation,
    costs: Sequence[CostTable],
    sizes: Sequence[SizeTable],
    execution: Execution,
) -> BlockwisePlan:
    workloads = taught.workloads
    subnets, plan, summary = _run(taught, costs, execution)
    passes = workloads[0].recipe.steps.passes
    placed = [[each.partition for each in own.planned[:passes]] for own in plan.streams]
    output_bytes = tuple(each.output_bytes for each in workloads)
    wiring = wiring_of(workloads, taught.taps)
    pieces = Pieces(((),) * len(workloads), wiring, output_bytes, passes)
    stages = [StageId(number) for number in range(execution.pipeline.stages)]
    steps = subnets / passes
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
    """Return the bytes of all candidates on a stage, and of the teacher outputs that wait there."""
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
"""Relative tolerance when rounding up to a whole number of teachers."""


def teachers_needed(student_rate: float, teacher_rate: float) -> int:
    """Return the fewest equal teachers that never let the student wait: n = ceil(t_s / t_t)."""
    check_rates(student_rate, teacher_rate)
    return max(1, math.ceil(student_rate / teacher_rate * (1 - ROUNDING)))


def check_rates(student_rate: float, teacher_rate: float) -> None:
    """Reject a rate that is not above 0."""
    for name, rate in (("student", student_rate), ("teacher", teacher_rate)):
        if not 0 < rate < math.inf:
            raise ConfigError(f"{name}: expected a rate above 0, found {rate}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtPlan:
    """One way to train a student with its teacher."""

    passes: str
    """The setting of the recipe."""
    views: int
    stages: int
    cuts: str
    """``own``: the teacher's cuts balance it alone; ``joint``: they are the student's cuts."""
    ratio: float
    """Forward time of the teacher divided by that of the student."""
    filled_from: int | None
    """Least number of passes per step with which the teacher fills the pipeline; None for a teacher
    of the same step, which never does."""
    is_filled: bool
    """True if steps have that many passes."""
    order: str
    passes_per_second: float
    """Passes of the student per second."""
    bubble_ratio: float
    teachers: int | None
    """Number of teachers, each with its own device, that make labels as fast as the student takes
    them if it is alone on its stages; None for a teacher that follows the student, because it makes
    no labels in advance."""


def taught_plans(
    define: Callable[[str], Workload],
    teacher: Callable[[], MakesTeacher | None],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[TaughtPlan]:
    """Simulate all ``kinds`` of steps and all cuts on all numbers of devices, fastest first.

    ``define`` makes the student for a kind of steps, and ``teacher`` makes a new teacher for each.

    Raises:
        ConfigError: if the teacher does not fit, or the data do not allow the steps.
    """
    found: list[TaughtPlan] = []
    for kind in kinds:
        taught = join([define(kind)], execution, teacher=teacher())
        costs = measured_costs(taught.workloads, execution)
        own, of_teacher = taught.workloads
        for stages in devices:
            if stages > len(own.space):
                continue
            cuts = ["own"] if of_teacher.follows is None and stages <= len(of_teacher.space) else []
            if of_teacher.follows is not None or stages > 1:
                cuts.append("joint")
            needed = _teachers(taught.workloads, costs, execution.changed(stages=stages))
            for cut in cuts:
                how = execution.changed(stages=stages, teacher_cuts=cut)
                found.append(_simulated_taught(carried_out(taught, how), costs, how, needed))
    return sorted(found, key=lambda each: (-each.passes_per_second, each.stages, each.cuts))


def for_passes(workload: Workload, passes: str, make: Callable[[int], Workload]) -> Workload:
    """Return the workload, or one from ``make`` with the micro-batches that steps need."""
    data, count = workload.data, parse_passes(passes).passes
    if not isinstance(data, Views) or count % (data.views + data.local) or count == data.passes:
        return workload
    return make(count // (data.views + data.local))


def _teachers(
    workloads: Sequence[Workload], costs: Sequence[CostTable], execution: Execution
) -> int | None:
    """Return the teachers needed, from the rates of the student alone and of one teacher."""
    student, teacher = workloads
    label_ns = forward_ns(teacher, costs[1])
    if teacher.follows is not None:
        return None
    subnets, _, summary = _run(Distillation((student,)), costs[:1], execution)
    if not label_ns or not summary.seconds:
        return None
    return teachers_needed(subnets / summary.seconds, 1e9 / label_ns)


def _run(
    taught: Distillation, costs: Sequence[CostTable], execution: Execution
) -> tuple[int, Plan, Summary]:
    """Plan and simulate streams; return the first one's subnet count, the plan and a summary."""
    workloads = taught.workloads
    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(workloads)]
    wiring = wiring_of(workloads, taught.taps)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring)
    plan = make_plan(workloads, execution, subnets, costs, wiring)
    timing = measured_timing(as_planned(pipeline, plan), execution, plan.memory)
    summary = simulate_run(pipeline, plan, execution, timing).summary
    return len(subnets[0]), plan, summary


def _simulated_taught(
    taught: Distillation, costs: Sequence[CostTable], execution: Execution, teachers: int | None
) -> TaughtPlan:
    student, teacher = taught.workloads
    subnets, plan, summary = _run(taught, costs, execution)
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
        passes_per_second=subnets / summary.seconds if summary.seconds else 0.0,
        bubble_ratio=summary.bubble_ratio,
        teachers=teachers,
    )


def with_passes(workload: Workload, passes: str, steps: int, seed: int) -> Workload:
    """Return the workload with these passes per step, and about this many passes in total."""
    recipe = replace(workload.recipe, passes=passes)
    count = recipe.settled(workload.space.drawn_counts).steps.passes
    return workload.redefined(recipe=recipe, steps=max(1, steps // count), seed=seed)
