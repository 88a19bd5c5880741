"""What pipelines a student and its teacher could have: their stages and cuts, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.rules import Follows
from naspipe.config.steps import parse_passes
from naspipe.config.wiring import Wiring
from naspipe.data.views import Views
from naspipe.frontend.given.drawn_source import draw_stream
from naspipe.frontend.given.run_plan import make_pipeline, make_plan, measured_costs
from naspipe.frontend.teaching.joined import join
from naspipe.frontend.teaching.ports import MakesTeacher
from naspipe.frontend.teaching.taught import (
    Taught,
    carried_out,
    forward_ns,
    forward_ratio,
    passes_to_fill,
)
from naspipe.label_scheduler.rates import teachers_needed
from naspipe.planning.cost import CostTable
from naspipe.runtime.jobs.workload import Workload, wiring_of
from naspipe.sim.pipeline import Plan, as_planned
from naspipe.sim.simulation import measured_timing, simulate_run
from naspipe.trace.reading.metrics import Summary

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
    teacher: Callable[[], MakesTeacher],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[TaughtPlan]:
    """Every kind of steps on every number of devices, with every cut, the fastest first.

    Args:
        define: the student by what its steps are made of.
        teacher: made anew for each student.
        kinds: of steps.
        devices: numbers of stages.
        execution: all else.

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
    """A workload whose data have as many micro-batches of each view as such steps need.

    Args:
        workload: of any data.
        passes: of a step.
        make: the workload by the micro-batches of a step.
    """
    data, count = workload.data, parse_passes(passes).passes
    if not isinstance(data, Views) or count % (data.views + data.local) or count == data.passes:
        return workload
    return make(count // (data.views + data.local))


def _possible_taught(taught: Taught, stages: int) -> Iterator[str]:
    """The cuts that make a difference on so many stages."""
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
    """By the rate of the student alone on so many stages, and of one teacher alone."""
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
    """A workload of about so many passes in all, in steps of such passes."""
    recipe = replace(workload.recipe, passes=passes)
    count = recipe.settled(workload.space.drawn_counts).steps.passes
    return workload.redefined(recipe=recipe, steps=max(1, steps // count), seed=seed)
