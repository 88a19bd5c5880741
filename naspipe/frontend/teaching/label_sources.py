"""A frozen teacher's outputs as a batch field that comes late, in the place of a stream."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.execution import FILE, INLINE
from naspipe.config.ids import SequenceId
from naspipe.config.wiring import Tap
from naspipe.frontend.teaching.label_service import LabelService
from naspipe.frontend.teaching.taught import Taught
from naspipe.runtime.jobs.losses import is_joined, wants_hidden
from naspipe.runtime.jobs.ports import OpenSource
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.filed_labels import FiledLabels
from naspipe.runtime.labels.inline_labels import InlineLabels
from naspipe.runtime.labels.label_file import LabelFile, label_key
from naspipe.runtime.labels.served_labels import ServedLabels

Attendant = AbstractContextManager[Any]

LABEL = "naspipe.label"
"""The batch field that a teacher's output is then."""


def with_labels(taught: Taught, execution: Execution) -> Taught:
    """The student with labels from where the execution says, and without its teacher's stream.

    Its definition is the same: labels are what the teacher of that digest says.

    Raises:
        ConfigError: without a frozen teacher in evaluation mode that says one thing of each batch,
            or for a file of another teacher's labels.
    """
    source = execution.teaching.source
    student, teacher = _ends(taught, source)
    opened, attendants = _opened(source, student, teacher, execution)
    student = replace(
        student,
        field_sources={**student.field_sources, LABEL: opened},
        lesson_fields=(LABEL,),
        labelled_by=(teacher, taught.taps[0]),
        attendants=(*student.attendants, *attendants),
    )
    return Taught((student,), (), ("",))


def _ends(taught: Taught, source: str) -> tuple[Workload, Workload]:
    """The student and its teacher.

    Raises:
        ConfigError: where its labels cannot come as fields.
    """
    student, *teachers = taught.workloads
    expected = f"labels={source:.40}: expected"
    if len(teachers) != 1 or teachers[0].is_trained or teachers[0].follows is not None:
        raise ConfigError(f"{expected} a frozen teacher, as of --teacher RUN, found none")
    (teacher,) = teachers
    (tap, *more) = taught.taps
    if is_joined(student.loss) or more or not _is_plain(tap, taught):
        raise ConfigError(
            f"{expected} a loss of one pass and the teacher's output for it, found "
            f"{type(student.loss).__name__}, which takes those of several; use labels=pipeline"
        )
    if wants_hidden(student.loss):
        raise ConfigError(
            f"{expected} a loss of the teacher's last output, found {type(student.loss).__name__}, "
            f"which takes hidden states, too; use labels=pipeline"
        )
    if teacher.runs_in_training_mode:
        raise ConfigError(
            f"{expected} a teacher in mode eval, found train, in which batches are not alone; use "
            f"labels=pipeline"
        )
    return student, teacher


def _is_plain(tap: Tap, taught: Taught) -> bool:
    """Whether each pass learns from the teacher's pass of the same number, at its end."""
    _, teacher = taught.workloads
    return tap.passes is None and tap.source[1] == len(teacher.space) - 1


def _opened(
    source: str, student: Workload, teacher: Workload, execution: Execution
) -> tuple[OpenSource, tuple[Attendant, ...]]:
    """What a stage opens, and what has to be there for it."""
    device = execution.hardware.device
    if source == INLINE:
        return partial(InlineLabels, teacher, device), ()
    key = label_key(student.definition)
    if source.startswith(FILE):
        found = LabelFile(source.removeprefix(FILE))
        passes = student.definition.num_passes
        found.check(key, student.recipe.steps.batch(SequenceId(passes - 1)) + 1)
        return partial(FiledLabels, found), ()
    named = replace(teacher, definition=replace(teacher.definition, teacher=key["teacher"]))
    service = LabelService(named, execution)
    return partial(ServedLabels, service.begin), service.attendants
