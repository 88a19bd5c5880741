"""Three sources of a frozen teacher's outputs as a late batch field, instead of a stream.

Such an output is called a label. Labels are computed by the stage of the loss itself
(:class:`InlineLabels`), read from a file (:class:`FiledLabels`), or computed by remote teachers
(:class:`ServedLabels`). All three implement :class:`naspipe.jobs.ports.FieldSource`.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from naspipe.config.errors import ConfigError, NaspipeError, TransportError
from naspipe.config.execution import FILE, INLINE, Execution
from naspipe.config.ids import SequenceId
from naspipe.distill.admission_check import Admission, Asking, StageBatches
from naspipe.distill.distillation import Distillation
from naspipe.distill.label_file import LabelFile, label_key
from naspipe.distill.label_messages import TeacherLines
from naspipe.distill.label_network import LabelNetwork, check_draws, label_digest
from naspipe.distill.label_service import LabelService
from naspipe.jobs.losses import is_joined, wants_hidden
from naspipe.jobs.ports import OpenSource, SourceSeat
from naspipe.jobs.workload import Workload
from naspipe.label_scheduler.balance import Doubt
from naspipe.label_scheduler.label_table import Counts
from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Conflict,
    Deliver,
    Drop,
    Event,
    Hire,
    Release,
    Tick,
    Used,
    Wanted,
)
from naspipe.store.files import write_whole, writing
from naspipe.store.teacher_events import teacher_events_file
from naspipe.wire.transport import Wakeup

LABEL = "naspipe.label"
"""The batch field that holds a teacher's output."""

NOTE_SECONDS = 60.0
_MOST_WAIT_MS = 1000


class _StageLabels:
    """Labels that the stage reads or computes itself when it is otherwise idle."""

    def __init__(self, seat: SourceSeat) -> None:
        self._wake = seat.wake
        self._asked: deque[int] = deque()

    def request(self, batch: int) -> None:
        self._asked.append(batch)
        self._wake()

    def close(self) -> None:
        self._asked.clear()


class FiledLabels(_StageLabels):
    """Labels from a file that holds those of the whole run."""

    def __init__(self, file: LabelFile, seat: SourceSeat) -> None:
        super().__init__(seat)
        self._file = file

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        asked, self._asked = self._asked, deque()
        return [(batch, self._file.label(batch)) for batch in asked]


class InlineLabels(_StageLabels):
    """Labels that the stage computes on its device, one at a time, between tasks."""

    def __init__(self, teacher: Workload, device: str, seat: SourceSeat) -> None:
        super().__init__(seat)
        self._teacher = teacher
        self._device = device
        self._network: LabelNetwork | None = None
        """Created on the first request, which only the stage of the loss receives."""

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
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
        super().close()
        self._network = None


class MissingLabels:
    """Measures how long a label has been missing; times are seconds of one monotonic clock.

    The time-out of a label begins when it becomes the first missing one.
    """

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._missing: int | None = None
        self._since = self._noted = self._last = now
        self.seconds = 0.0
        """Total time during which a requested label was missing."""

    def update(self, now: float, missing: int | None, num_teachers: int, why: str = "") -> str:
        """Return a line for the user, which is usually empty.

        ``missing`` is the first batch whose label was requested and has not arrived, and ``why`` is
        the reason given by a teacher that refused a batch, if any.

        Raises:
            ConfigError: if the label has been missing for too long.
        """
        if self._missing is not None:
            self.seconds += now - self._last
        self._last = now
        if missing is None or missing != self._missing:
            self._missing, self._since, self._noted = missing, now, now
            return ""
        waited = now - self._since
        there = f"{num_teachers} teachers that do not answer" if num_teachers else "none"
        there += f" ({why:.200})" if why else ""
        if waited >= self._timeout:
            raise ConfigError(
                f"labels: expected a teacher within {self._timeout:g} s (timeout_seconds), found "
                f"{there}; the first label that is missing is that of batch {missing}; start one "
                f"with naspipe teach and resume the run"
            )
        if now - self._noted < NOTE_SECONDS:
            return ""
        self._noted = now
        return f"the label of batch {missing} is missing for {waited:.0f} s; teachers: {there}"


class LabelRecord:
    """Appends lines to ``teachers-N.jsonl``: events as they occur, and counts at the end.

    ``number`` is that of the student among those of the run (its group); ``generation`` is the
    number of times that the run has been resumed. Every method raises a StorageError if the file
    cannot be written.
    """

    def __init__(self, directory: Path, number: int, generation: int) -> None:
        path = teacher_events_file(directory, number)
        is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._path = path
        with writing(path):
            self._file = path.open("ab", buffering=0)
            write_whole(self._file, b"\n" if is_torn else b"")
        self.event("begin", generation=generation)

    def event(self, what: str, teacher: str | None = None, **more: Any) -> None:
        """Write an event; ``teacher`` is the teacher that it concerns, if any."""
        who = {} if teacher is None else {"teacher": teacher}
        line = {"time_ns": time.monotonic_ns(), "event": what, **who, **more}
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with writing(self._path, len(data)):
            write_whole(self._file, data)

    def close(
        self, counts: Mapping[str, Counts], audits_missed: int, seconds_missing: float
    ) -> None:
        """Write the counts of each teacher in this attempt, and close the file."""
        for teacher, found in sorted(counts.items()):
            self.event("counts", teacher, **asdict(found))
        self.event("end", audits_missed=audits_missed, seconds_missing=seconds_missing)
        self._file.close()


class ServedLabels:
    """Labels of remote teachers, which are requested by a separate thread that runs the scheduler.

    The thread starts with the first request, which only the stage of the loss receives.

    Args:
        begin: returns how to request labels; called with the first request.
        seat: the seat of the source.
    """

    def __init__(self, begin: Callable[[SourceSeat], Asking], seat: SourceSeat) -> None:
        self._begin, self._seat = begin, seat
        self._thread: threading.Thread | None = None
        self._asked: set[int] = set()
        self._held: dict[int, torch.Tensor] = {}
        """Labels that arrived before they were requested."""

    def request(self, batch: int) -> None:
        if self._thread is None:
            self._start()
        self._asked.add(batch)
        self._tell(Wanted, batch)
        if batch in self._held:
            self._seat.wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Return the requested labels that have arrived, and make batches for the thread.

        Raises:
            ConfigError: if two teachers disagree, or no teacher has been available for too long.
        """
        if self._thread is None:
            return ()
        if self._failure is not None:
            raise self._failure
        self._batches.run()
        self._held.update(self._delivered.get() for _ in range(self._delivered.qsize()))
        found = sorted(self._asked & self._held.keys())
        for batch in found:
            self._asked.discard(batch)
            self._tell(Used, batch)
        return [(batch, self._held.pop(batch)) for batch in found]

    def close(self) -> None:
        if self._thread is None:
            return
        self._is_closing = True
        self._wakeup.set()
        self._thread.join()
        self._wakeup.__exit__()
        self._watch.close()
        scheduler = self._scheduler
        self._record.close(scheduler.counts, scheduler.audits_missed, self._missing.seconds)

    def _start(self) -> None:
        seat, asking = self._seat, self._begin(self._seat)
        self._scheduler, self._watch = asking.scheduler, asking.watch
        self._places = {batch: place for place, batch in enumerate(seat.batches)}
        """The scheduler counts only the batches of this student."""
        self._events: queue.SimpleQueue[tuple[type[Wanted] | type[Used], int]] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, torch.Tensor]] = queue.SimpleQueue()
        self._answers: dict[tuple[str, int], torch.Tensor] = {}
        self._is_newest_kept = False
        """False if an earlier answer of the teacher that answered last is still being compared."""
        self._missing = MissingLabels(asking.timeout_seconds, time.monotonic())
        self._doubt = Doubt()
        self._failure: NaspipeError | None = None
        self._is_closing = False
        self._wakeup = Wakeup()
        self._lines = TeacherLines(self._wakeup.fileno, self._watch.fileno)
        self._record = LabelRecord(seat.directory, seat.share[0], seat.generation)
        self._batches = StageBatches(asking.fields, seat.wake, self._wakeup.set)
        self._admission = Admission(
            asking,
            seat,
            self._lines,
            self._batches,
            self._record.event,
            self._handle,
            self._take_answer,
        )
        self._thread = threading.Thread(target=self._run, name="naspipe-labels", daemon=True)
        self._thread.start()

    def _tell(self, kind: type[Wanted] | type[Used], batch: int) -> None:
        self._events.put((kind, self._places[batch]))
        self._wakeup.set()

    def _run(self) -> None:
        try:
            while not self._is_closing and self._failure is None:
                self._turn()
        except NaspipeError as error:
            self._failure = error
        except Exception as error:  # the stage must be informed of any error
            self._failure = TransportError(f"labels: {type(error).__name__}: {error}")
        finally:
            self._lines.end()
            self._seat.wake()

    def _turn(self) -> None:
        due, wait_ms = self._scheduler.deadline_ns, _MOST_WAIT_MS
        if due is not None:
            wait_ms = min(wait_ms, max(0, -(-(due - time.monotonic_ns()) // 1_000_000)))
        ready = self._lines.wait(wait_ms)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        while not self._events.empty():
            kind, place = self._events.get()
            self._handle(kind(time.monotonic_ns(), place))
        if self._watch.fileno() in ready:
            self._admission.update(self._watch.take())
        self._batches.settle()
        self._admission.hear()
        if due is not None and due <= time.monotonic_ns():
            self._handle(Tick(time.monotonic_ns()))
        missing = self._scheduler.first_missing
        batch = None if missing is None else self._seat.batches[missing]
        teachers, why = len(self._scheduler.teachers), self._admission.last_no
        if note := self._missing.update(time.monotonic(), batch, teachers, why):
            self._seat.note(note)

    def _take_answer(self, name: str, number: int, label: torch.Tensor) -> None:
        place = self._places[number]
        self._is_newest_kept = (name, place) not in self._answers
        if self._is_newest_kept:
            self._answers[name, place] = label
            self._doubt.answered(number, name)
        self._handle(Answered(time.monotonic_ns(), name, place, label_digest(label)))

    def _handle(self, event: Event) -> None:
        for command in self._scheduler.handle(event):
            match command:
                case Ask(teacher, place):
                    self._admission.request(teacher, self._seat.batches[place])
                case Deliver(place, teacher):
                    batch = self._seat.batches[place]
                    makers = sorted(name for name, of in self._answers if of == place)
                    self._doubt.delivered(batch, makers)
                    self._delivered.put((batch, self._answers[teacher, place]))
                    for name in makers:
                        del self._answers[name, place]
                    self._seat.wake()
                case Drop(teacher, place):
                    if self._is_newest_kept:
                        self._answers.pop((teacher, place), None)
                        self._doubt.dropped(self._seat.batches[place], teacher)
                case Conflict(place, teachers, _):
                    raise self._conflict(self._seat.batches[place], teachers)
                case Hire(count):
                    self._record.event("hire", "", count=count)
                    self._watch.hire(count)
                case Release(teacher):
                    self._record.event("released", teacher)
                    self._watch.release(teacher)

    def _conflict(self, batch: int, teachers: tuple[str, str]) -> ConfigError:
        """Return the error for two teachers that disagree; earlier labels may be wrong, too."""
        first = min((batch, *(self._doubt.since(name, batch) for name in teachers)))
        self._record.event("doubt", batch=first)  # the next attempt begins before this batch
        return ConfigError(
            f"labels: expected the same bits of batch {batch} from all teachers, found others from "
            f"{' and '.join(teachers)}; labels from batch {first} on are in doubt; leave one "
            f"teacher out and resume the run, which then begins before them"
        )


def with_labels(streams: Distillation, execution: Execution) -> Distillation:
    """Return the student with labels from the execution's source, without its teacher's stream.

    Its definition does not change, because a label is the output of the teacher with that digest.

    Raises:
        ConfigError: if there is no frozen teacher in evaluation mode whose output depends only on
            the batch, or for a file of another teacher's labels.
    """
    source = execution.teaching.source
    student, teacher = _student_and_teacher(streams, source)
    device = execution.hardware.device
    attendants: tuple[AbstractContextManager[Any], ...] = ()
    opened: OpenSource
    key = label_key(student.definition)
    if source == INLINE:
        opened = partial(InlineLabels, teacher, device)
    elif source.startswith(FILE):
        file = LabelFile(source.removeprefix(FILE))
        passes = student.definition.num_passes
        file.check(key, student.recipe.steps.batch(SequenceId(passes - 1)) + 1)
        opened = partial(FiledLabels, file)
    else:
        named = replace(teacher, definition=replace(teacher.definition, teacher=key["teacher"]))
        service = LabelService(named, execution)
        opened, attendants = partial(ServedLabels, service.begin), service.attendants
    student = replace(
        student,
        field_sources={**student.field_sources, LABEL: opened},
        lesson_fields=(LABEL,),
        labelled_by=(teacher, streams.taps[0]),
        attendants=(*student.attendants, *attendants),
    )
    return Distillation((student,), (), ("",))


def _student_and_teacher(streams: Distillation, source: str) -> tuple[Workload, Workload]:
    """Return both streams.

    Raises:
        ConfigError: if the teacher's outputs cannot be supplied as batch fields.
    """
    student, *teachers = streams.workloads
    expected = f"labels={source:.40}: expected"
    if len(teachers) != 1 or teachers[0].is_trained or teachers[0].follows is not None:
        raise ConfigError(f"{expected} a frozen teacher, as of --teacher RUN, found none")
    (teacher,) = teachers
    (tap, *more) = streams.taps
    is_plain = tap.passes is None and tap.source[1] == len(teacher.space) - 1
    if is_joined(student.loss) or more or not is_plain:
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
