"""Streams that train together: a student, its teachers, and the outputs that go between them.

:func:`join` combines the workloads of a run with their teacher. A tap takes the output of a block
of one stream to a block of another. With a joined loss, which compares all passes of a step, the
output of every pass goes to the end of every other pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.execution import PIPELINE
from naspipe.config.ids import StreamId
from naspipe.config.wiring import Tap, TapRole
from naspipe.distill.output_checks import check_outputs
from naspipe.inputs.ends import joined_end, with_loss_layer
from naspipe.jobs.losses import distilled_fields, distilling, is_joined, loss_fields
from naspipe.jobs.workload import Workload
from naspipe.plan.chains import is_joint
from naspipe.plan.costs import CostTable


@dataclass(frozen=True, slots=True)
class Distillation:
    """Streams that train together, a student first, and the taps between them."""

    workloads: tuple[Workload, ...]
    taps: tuple[Tap, ...] = ()
    places: tuple[str, ...] = ()
    """Directory of each stream's records, below the run directory."""


class MakesTeacher(Protocol):
    """Adds a teacher to the stream of its student."""

    def beside(self, students: Sequence[Workload]) -> Distillation:
        """Return the only student and its teacher.

        Raises:
            ConfigError: if there are several students, or the teacher does not fit.
        """
        ...


def join(
    workloads: Sequence[Workload],
    execution: Execution,
    taps: Sequence[Tap] = (),
    teacher: MakesTeacher | None = None,
) -> Distillation:
    """Combine streams with their teacher and the taps that their losses need.

    The execution may say how far the teacher is ahead, and where it is cut.

    Raises:
        ConfigError: for a teacher or a loss that does not fit them.
    """
    if (relay := execution.pipeline.relay) != "decoupled":
        raise ConfigError(
            f"relay={relay}: expected blocks with teachers of their own, as of naspipe distill, "
            f"found none; leave it out"
        )
    workloads = [_with_end(each) for each in workloads]
    found = teacher.beside(workloads) if teacher else Distillation(tuple(workloads), tuple(taps))
    wired: list[Tap] = []
    for number, workload in enumerate(found.workloads):
        passes, end = range(workload.recipe.steps.passes), len(workload.space) - 1
        if workload.is_trained and is_joined(workload.loss) and len(passes) > 1:
            for one in passes:  # its output goes to the end of every other pass of its step
                pairs = tuple((one, other) for other in passes if other != one)
                source, sink = (StreamId(number), end - 1), (StreamId(number), end)
                wired.append(Tap(source, sink, role=TapRole.LESSON, number=one, passes=pairs))
    for tap in found.taps:
        student = found.workloads[tap.sink[0]]
        if teacher and is_joined(student.loss):
            passes = range(student.recipe.steps.passes)
            for one in sorted({one for one, _ in tap.passes}) if tap.passes else passes:
                pairs = tuple((one, other) for other in passes)
                wired.append(replace(tap, number=one, passes=pairs))
        else:
            wired.append(tap)
    streams: list[Workload] = []
    for number, workload in enumerate(found.workloads):
        passes = range(workload.recipe.steps.passes)
        own = [tap for tap in wired if tap.source[0] == number]
        if own and not workload.is_trained:  # omit passes of a step whose output is not used
            unneeded = (one for one in passes if not any(tap.sinks(one) for tap in own))
            workload = replace(workload, left_out=frozenset(unneeded))
        if teacher:
            own = [t for t in wired if t.role is TapRole.LESSON and t.sink[0] == number]
            always = all(any(tap.sources(each) for tap in own) for each in passes)
            differs = distilled_fields(workload.loss) != loss_fields(workload.loss)
            workload = replace(workload, is_taught=always and differs)
        streams.append(workload)
    if teacher:
        check_outputs(streams)
    found = replace(found, workloads=tuple(streams), taps=tuple(wired))
    found = carried_out(found, execution)
    execution.teaching.check_together()
    if execution.teaching.source == PIPELINE:
        return found
    from naspipe.distill.label_sources import with_labels  # imports all about remote teachers

    return with_labels(found, execution)


def _with_end(student: Workload) -> Workload:
    """Add a block at the end, if the loss needs one.

    The passes of a joined loss meet in that block, or it is a loss with parameters or buffers.

    Raises:
        ConfigError: for a loss that cannot be a layer, or if a joined loss gets passes with
            different subnets or different weights in the average.
    """
    if not is_joined(student.loss):
        return with_loss_layer(student)
    steps = student.recipe.steps
    if steps.distills or steps.draws_each or steps.weighs_items:
        raise ConfigError(
            f"a joined loss: expected passes=one or accumulate:N, whose outputs belong together, "
            f"found {student.recipe.passes}, weight={student.recipe.weight}"
        )
    return replace(student, space=student.space.followed_by(joined_end())).redefined()


def carried_out(streams: Distillation, execution: Execution) -> Distillation:
    """Apply the execution's settings of teachers: how far they are ahead, and their cuts.

    Raises:
        ConfigError: if there is no teacher, or one that cannot be cut so.
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
        ConfigError: if there are several students, or one whose loss takes no teacher, or whose
            steps already contain one.
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
    """Forward time of the subnet of first candidates on one batch; 0 without costs."""
    blocks = range(len(workload.space))
    return sum(costs.of(block, 0).forward_ns for block in blocks) if costs else 0


def forward_ratio(workloads: Sequence[Workload], costs: Sequence[CostTable | None]) -> float | None:
    """Forward time of a teacher divided by that of its student; None if one is unknown."""
    student, *teachers = zip(workloads, costs, strict=True)
    if not teachers or any(each.is_trained for each, _ in teachers):
        return None
    own, of_teacher = (forward_ns(*each) for each in (student, teachers[0]))
    return of_teacher / own if own and of_teacher else None


def passes_to_fill(ratio: float, stages: int) -> int:
    """Minimum number of passes of a step with which a teacher that is ahead fills a pipeline.

    Its forwards then take as long as the student's pipeline takes to fill and drain:
    ``ratio * passes >= 3 * (stages - 1)``.
    """
    return math.ceil(3 * (stages - 1) / ratio) if ratio else 0


def how_full(
    workloads: Sequence[Workload], costs: Sequence[CostTable | None], stages: int
) -> str | None:
    """Return a line that says whether a teacher's forwards can fill the pipeline, if known."""
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
