"""Combines the workloads of a run with their teacher and with the taps that their losses need.

With a joined loss, which compares all passes of a step, the output of every pass is sent to the end
of every other pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from naspipe.config.errors import ConfigError
from naspipe.config.execution import PIPELINE, Execution
from naspipe.config.ids import StreamId
from naspipe.config.wiring import Tap, TapRole
from naspipe.distill.distillation import Distillation, MakesTeacher, carried_out
from naspipe.distill.output_checks import check_outputs
from naspipe.inputs.ends import joined_end, with_loss_layer
from naspipe.jobs.losses import distilled_fields, is_joined, loss_fields
from naspipe.jobs.workload import Workload


def join(
    workloads: Sequence[Workload],
    execution: Execution,
    taps: Sequence[Tap] = (),
    teacher: MakesTeacher | None = None,
) -> Distillation:
    """Combine streams with their teacher and the taps that their losses need.

    ``execution`` may set how far the teacher runs ahead and where it is cut.

    Raises:
        ConfigError: for a teacher or a loss that does not fit the streams.
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
            for one in passes:  # its output is sent to the end of every other pass of its step
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
    from naspipe.distill.label_sources import with_labels  # imports the code for remote teachers

    return with_labels(found, execution)


def _with_end(student: Workload) -> Workload:
    """Append a block to the student if the loss needs one.

    The passes of a joined loss meet in that block; any other loss needs it for its parameters or
    buffers.

    Raises:
        ConfigError: for a loss that cannot be a layer, or for a joined loss if the passes of a step
            have different subnets or different weights in the average.
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
