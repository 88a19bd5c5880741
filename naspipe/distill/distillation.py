"""Streams that train together: a student, its teachers, and the taps between them.

A tap passes the output of a block of one stream to a block of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.wiring import Tap
from naspipe.jobs.losses import distilling, is_joined
from naspipe.jobs.workload import Workload
from naspipe.plan.chains import is_joint
from naspipe.plan.costs import CostTable


@dataclass(frozen=True, slots=True)
class Distillation:
    """Streams that train together, the students first, and the taps between them."""

    workloads: tuple[Workload, ...]
    taps: tuple[Tap, ...] = ()
    places: tuple[str, ...] = ()
    """Directory of each stream's records, relative to the run directory."""


class MakesTeacher(Protocol):
    """Adds a teacher to the stream of its student."""

    def beside(self, students: Sequence[Workload]) -> Distillation:
        """Return the only student and its teacher.

        Raises:
            ConfigError: if there are several students, or the teacher does not fit.
        """
        ...


def carried_out(streams: Distillation, execution: Execution) -> Distillation:
    """Apply the execution's settings for teachers: how far they run ahead, and their cuts.

    Raises:
        ConfigError: if there is no teacher, or if it cannot be cut as requested.
    """
    way = execution.pipeline
    window, cuts = way.teacher_window, way.teacher_cuts
    if not window and cuts == "auto":
        return streams
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
    if all(each.is_trained for each in streams.workloads):
        setting = f"teacher_window={window}" if window else f"teacher_cuts={cuts}"
        raise ConfigError(f"{setting}: expected a teacher with it, found none")
    found = []
    for each in streams.workloads:
        if each.is_trained:  # the window of a student is that of its teachers
            found.append(replace(each, window=window) if window and each.window else each)
            continue
        if cuts == "own" and each.follows is not None:
            raise ConfigError(
                "teacher_cuts=own: expected joint ones for a teacher that follows the student, as "
                "layers are where their sources are"
            )
        cut_like = each.cut_like
        if each.follows is None:
            cut_like = {"own": None, "joint": 0}.get(cuts, cut_like)
        found.append(replace(each, window=window or each.window, cut_like=cut_like))
    return replace(streams, workloads=tuple(found))


def only_student(students: Sequence[Workload]) -> Workload:
    """Return the only student of a teacher.

    Raises:
        ConfigError: if there are several students, or one whose loss takes no teacher outputs, or
            whose steps already contain a teacher.
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


def forward_ns(workload: Workload, costs: CostTable | None) -> int:
    """Return the forward time of the first candidates' subnet on one batch; 0 without costs."""
    blocks = range(len(workload.space))
    return sum(costs.of(block, 0).forward_ns for block in blocks) if costs else 0


def forward_ratio(workloads: Sequence[Workload], costs: Sequence[CostTable | None]) -> float | None:
    """Return the forward time of a teacher divided by the student's; None if one is unknown."""
    student, *teachers = zip(workloads, costs, strict=True)
    if not teachers or any(each.is_trained for each, _ in teachers):
        return None
    own, of_teacher = (forward_ns(*each) for each in (student, teachers[0]))
    return of_teacher / own if own and of_teacher else None


def passes_to_fill(ratio: float, stages: int) -> int:
    """Return the minimum number of passes per step with which a teacher ahead fills the pipeline.

    The teacher's forwards then take as long as the student's pipeline takes to fill and drain:
    ``ratio * passes >= 3 * (stages - 1)``.
    """
    return math.ceil(3 * (stages - 1) / ratio) if ratio else 0


def how_full(
    workloads: Sequence[Workload], costs: Sequence[CostTable | None], stages: int
) -> str | None:
    """Return a line on whether a teacher's forwards can fill the pipeline; None if unknown."""
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
