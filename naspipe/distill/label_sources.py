"""A frozen teacher's outputs as a batch field that comes late, in the place of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.execution import FILE, INLINE
from naspipe.config.ids import SequenceId
from naspipe.config.wiring import Tap
from naspipe.distill.label_file import LabelFile, label_key
from naspipe.distill.label_network import LabelNetwork, check_draws
from naspipe.distill.label_reader import LabelReader
from naspipe.distill.label_service import LabelService
from naspipe.distill.taught import Taught
from naspipe.jobs.losses import is_joined, wants_hidden
from naspipe.jobs.ports import OpenSource, SourceSeat
from naspipe.jobs.workload import Workload


class FiledLabels:
    """A :class:`naspipe.jobs.ports.FieldSource`.

    Args:
        file: holds every label of the run.
        seat: see :class:`naspipe.jobs.ports.SourceSeat`.
    """

    def __init__(self, file: LabelFile, seat: SourceSeat) -> None:
        self._file = file
        self._wake = seat.wake
        self._asked: deque[int] = deque()

    def request(self, batch: int) -> None:
        """Read the label of a batch."""
        self._asked.append(batch)
        self._wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Every label that was asked for."""
        asked, self._asked = self._asked, deque()
        return [(batch, self._file.label(batch)) for batch in asked]

    def close(self) -> None:
        """Nothing more is wanted."""
        self._asked.clear()


class InlineLabels:
    """A :class:`naspipe.jobs.ports.FieldSource`; one label at a time, between tasks.

    Args:
        teacher: what computes them.
        device: of the stage.
        seat: see :class:`naspipe.jobs.ports.SourceSeat`.
    """

    def __init__(self, teacher: Workload, device: str, seat: SourceSeat) -> None:
        self._teacher = teacher
        self._device = device
        self._network: LabelNetwork | None = None
        """Made with the first request: only the stage of the loss has any."""
        self._wake = seat.wake
        self._asked: deque[int] = deque()

    def request(self, batch: int) -> None:
        """Compute the label of a batch when nothing else is done."""
        self._asked.append(batch)
        self._wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """The next label."""
        if not self._asked:
            return ()
        if self._network is None:
            self._network = LabelNetwork.of(self._teacher, self._device)
            if self._teacher.recipe.steps.shares_batch:  # a label belongs to several passes
                check_draws(self._network, self._asked[0], self._network.fields(self._asked[0]))
        batch = self._asked.popleft()
        if self._asked:
            self._wake()
        return [(batch, self._network.label(batch))]

    def close(self) -> None:
        """Nothing more is wanted."""
        self._asked.clear()
        self._network = None


class ServedLabels:
    """A :class:`naspipe.jobs.ports.FieldSource`.

    Args:
        begin: makes the reader, with the first request: only the stage of the loss has any.
        seat: see there.
    """

    def __init__(self, begin: Callable[[SourceSeat], LabelReader], seat: SourceSeat) -> None:
        self._begin, self._seat = begin, seat
        self._reader: LabelReader | None = None
        self._asked: set[int] = set()
        self._held: dict[int, torch.Tensor] = {}
        """Labels that came before they were asked for."""

    def request(self, batch: int) -> None:
        """Have a label by and by."""
        if self._reader is None:
            self._reader = self._begin(self._seat)
        self._asked.add(batch)
        self._reader.want(batch)
        if batch in self._held:
            self._seat.wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Those that were asked for and have come."""
        if self._reader is None:
            return ()
        self._held.update(self._reader.take())
        found = sorted(self._asked & self._held.keys())
        for batch in found:
            self._asked.discard(batch)
            self._reader.used(batch)
        return [(batch, self._held.pop(batch)) for batch in found]

    def close(self) -> None:
        """End the reader."""
        if self._reader is not None:
            self._reader.close()


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
