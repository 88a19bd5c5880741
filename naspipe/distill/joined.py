"""One loss over all passes of a step: every pass's output goes to the end of every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.execution import PIPELINE
from naspipe.config.ids import StreamId
from naspipe.config.wiring import Tap, TapRole
from naspipe.distill.lesson_shapes import check_lessons
from naspipe.distill.taught import Taught, carried_out
from naspipe.distill.teachers import MakesTeacher
from naspipe.inputs.ends import joined_end, with_loss_layer
from naspipe.jobs.losses import distilled_fields, is_joined, loss_fields
from naspipe.jobs.workload import Workload


def with_end(student: Workload) -> Workload:
    """A workload with one more block at its end, if its loss needs one.

    In that block the passes of a joined loss meet, or it is the layer of a loss with parameters or
    buffers.

    Raises:
        ConfigError: for a loss that cannot be a layer, or for passes that each have a subnet or a
            part in the average of their own.
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


def _exchanged(stream: StreamId, student: Workload) -> list[Tap]:
    """Every pass's output to the end of every other pass of its step."""
    passes, end = range(student.recipe.steps.passes), len(student.space) - 1
    return [
        Tap(
            source=(stream, end - 1), sink=(stream, end), role=TapRole.LESSON, number=one,
            passes=tuple((one, other) for other in passes if other != one),
        )
        for one in passes if len(passes) > 1
    ]  # fmt: skip


def _needed_only(taught: Taught) -> tuple[Workload, ...]:
    """Streams that are not trained, without the passes of a step that nobody takes."""
    found = []
    for number, workload in enumerate(taught.workloads):
        own = [tap for tap in taught.taps if tap.source[0] == number]
        if own and not workload.is_trained:
            passes = range(workload.recipe.steps.passes)
            unneeded = (one for one in passes if not any(tap.sinks(one) for tap in own))
            workload = replace(workload, left_out=frozenset(unneeded))
        found.append(workload)
    return tuple(found)


def _always_taught(taught: Taught) -> tuple[Workload, ...]:
    """Streams, marked where every pass has a lesson and the loss then needs other fields."""
    found = []
    for number, workload in enumerate(taught.workloads):
        own = [tap for tap in taught.taps if tap.role is TapRole.LESSON and tap.sink[0] == number]
        learns_all = all(
            any(tap.sources(each) for tap in own) for each in range(workload.recipe.steps.passes)
        )
        differs = distilled_fields(workload.loss) != loss_fields(workload.loss)
        found.append(replace(workload, is_taught=learns_all and differs))
    return tuple(found)


def join(
    workloads: Sequence[Workload],
    execution: Execution,
    taps: Sequence[Tap] = (),
    teacher: MakesTeacher | None = None,
) -> Taught:
    """Streams that train together, with their teacher and the taps that their losses ask for.

    The execution may say how far the teacher is ahead, and where it is cut.

    Raises:
        ConfigError: for a teacher or a loss that does not fit them.
    """
    if (relay := execution.pipeline.relay) != "decoupled":
        raise ConfigError(
            f"relay={relay}: expected blocks with teachers of their own, as of naspipe distill, "
            f"found none; leave it out"
        )
    workloads = [with_end(each) for each in workloads]
    found = teacher.beside(workloads) if teacher else Taught(tuple(workloads), tuple(taps))
    ends: list[Tap] = []
    for number, workload in enumerate(found.workloads):
        if workload.is_trained and is_joined(workload.loss):
            ends += _exchanged(StreamId(number), workload)
    for tap in found.taps:
        sink = found.workloads[tap.sink[0]]
        if teacher and is_joined(sink.loss):
            passes = range(sink.recipe.steps.passes)
            taught = sorted({one for one, _ in tap.passes}) if tap.passes else passes
            pairs = [(one, tuple((one, other) for other in passes)) for one in taught]
            ends += [replace(tap, number=one, passes=pair) for one, pair in pairs]
        else:
            ends.append(tap)
    found = replace(found, taps=tuple(ends))
    found = replace(found, workloads=_needed_only(found))
    if teacher:
        check_lessons(found)
        found = replace(found, workloads=_always_taught(found))
    found = carried_out(found, execution)
    execution.teaching.check_together()
    if execution.teaching.source == PIPELINE:
        return found
    from naspipe.distill.label_sources import with_labels  # with all of the teachers

    return with_labels(found, execution)
