"""Streams that train together, and whoever can make them of the user's only one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.wiring import Tap
from naspipe.jobs.losses import distilling, is_joined
from naspipe.jobs.workload import Workload
from naspipe.plan.chains import is_joint
from naspipe.plan.costs import CostTable


@dataclass(frozen=True, slots=True)
class Taught:
    """Streams that train together, a student first, and what goes from one to the other."""

    workloads: tuple[Workload, ...]
    taps: tuple[Tap, ...] = ()
    places: tuple[str, ...] = ()
    """Of what is recorded of each, below the run directory."""


def carried_out(taught: Taught, execution: Execution) -> Taught:
    """With what the execution says of teachers: how far they are ahead, and their cuts.

    Raises:
        ConfigError: where there is no teacher, or one that cannot be cut so.
    """
    way = execution.pipeline
    window, cuts = way.teacher_window, way.teacher_cuts
    if not window and cuts == "auto":
        return taught
    if window and way.relay == "barrier":
        raise ConfigError(
            f"teacher_window={window}: expected none with relay=barrier, as no block begins a step "
            f"before all are through the one before; leave one of them out"
        )
    if cuts == "joint" and is_joint(execution):
        raise ConfigError(
            f"teacher_cuts=joint: expected own ones with partition={way.partition}, which places "
            f"each block by itself"
        )
    found = [_carried_out(each, window, cuts) for each in taught.workloads]
    if all(each.is_trained for each in found):
        said = f"teacher_window={window}" if window else f"teacher_cuts={cuts}"
        raise ConfigError(f"{said}: expected a teacher with it, found none")
    return replace(taught, workloads=tuple(found))


def _carried_out(one: Workload, window: int, cuts: str) -> Workload:
    if one.is_trained:  # a window of its own is that of its teachers
        return replace(one, window=window) if window and one.window else one
    if cuts == "own" and one.follows is not None:
        raise ConfigError(
            "teacher_cuts=own: expected joint ones for a teacher that follows the student, as "
            "layers are where their sources are"
        )
    is_free = one.follows is None
    place = {"own": None, "joint": 0}.get(cuts, one.cut_like) if is_free else one.cut_like
    return replace(one, window=window or one.window, cut_like=place)


def forward_ratio(workloads: Sequence[Workload], costs: Sequence[CostTable | None]) -> float | None:
    """What a teacher's forward takes over its student's; None without a teacher, or costs."""
    student, *teachers = zip(workloads, costs, strict=True)
    if not teachers or any(each.is_trained for each, _ in teachers):
        return None
    own, of_teacher = (forward_ns(*each) for each in (student, teachers[0]))
    return of_teacher / own if own and of_teacher else None


def passes_to_fill(ratio: float, stages: int) -> int:
    """The least passes of a step with which a teacher that is ahead fills a pipeline.

    Its forwards then take as long as the student's pipeline takes to fill and drain:
    ``ratio * passes >= 3 * (stages - 1)``.
    """
    return math.ceil(3 * (stages - 1) / ratio) if ratio else 0


def how_full(
    workloads: Sequence[Workload], costs: Sequence[CostTable | None], stages: int
) -> str | None:
    """A line that says whether a teacher's forwards can fill the pipeline; None without any."""
    ratio = forward_ratio(workloads, costs)
    if stages == 1 or ratio is None:
        return None
    teacher, needed = workloads[1], passes_to_fill(ratio, stages)
    passes = teacher.recipe.steps.passes - len(teacher.left_out)
    fills = "enough" if passes >= needed else "not enough"
    return (
        f"the teacher's forward takes {ratio:.2f} of the student's: with {passes} passes a step "
        f"{fills} to fill {stages} stages ({ratio:.2f} x {passes} against {3 * (stages - 1)}, so "
        f"from {needed} passes on)"
    )


def forward_ns(workload: Workload, costs: CostTable | None) -> int:
    """Of a subnet with the first candidates, on one batch; 0 without costs."""
    blocks = range(len(workload.space))
    return sum(costs.of(block, 0).forward_ns for block in blocks) if costs else 0


def only_student(students: Sequence[Workload]) -> Workload:
    """The one workload that a teacher teaches.

    Raises:
        ConfigError: for several students, or one whose loss takes no teacher, or whose steps
            have one already.
    """
    student, *others = students
    if others:
        raise ConfigError(f"teacher: expected one stream to teach, found {len(students)}")
    if not is_joined(student.loss):
        distilling(student.loss)
    if student.recipe.steps.distills:
        raise ConfigError(
            f"teacher: expected passes other than {student.recipe.passes}, whose first pass "
            f"is a teacher already"
        )
    return student
