"""A student's thread that asks teachers for labels, as its scheduler says."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from naspipe.config.errors import ConfigError, NaspipeError, TransportError
from naspipe.distill.admission_check import (
    Applicant,
    Asking,
    class_problem,
    gone,
    problem_of,
    shapes_of,
    share_of,
)
from naspipe.distill.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    Stranger,
    TeacherLines,
    TeacherMessage,
)
from naspipe.distill.label_network import label_digest
from naspipe.distill.registry_watch import RegistryWatch
from naspipe.distill.teacher_card import TeacherCard
from naspipe.jobs.ports import SourceSeat
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
    Refused,
    Release,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)
from naspipe.store.files import write_whole, writing
from naspipe.store.teacher_events import teacher_events_file
from naspipe.wire.transport import Wakeup

NOTE_SECONDS = 60.0


class LabelPatience:
    """Told again and again what is missing; times are seconds of one monotonic clock.

    Args:
        timeout_seconds: for one label, from when it was the first that is missing.
        now: the time.
    """

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._missing: int | None = None
        self._since = self._noted = self._told = now
        self.seconds = 0.0
        """In all, in which the student had asked for a label that was not there."""

    def tell(self, now: float, missing: int | None, num_teachers: int, why: str = "") -> str:
        """A line for the user, mostly empty.

        Args:
            now: the time.
            missing: the first batch whose label was asked for and is not there.
            num_teachers: that may be asked.
            why: one of them would not make a batch, where that is known.

        Raises:
            ConfigError: when it has been missing for too long.
        """
        if self._missing is not None:
            self.seconds += now - self._told
        self._told = now
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
    """Appends lines to ``teachers-N.jsonl``: events as they come, and counts at the end.

    Args:
        directory: of the stream.
        number: of the student among those of the run (its group).
        generation: how often the run has gone on.

    Raises:
        StorageError: from every call, when the file cannot be written.
    """

    def __init__(self, directory: Path, number: int, generation: int) -> None:
        path = teacher_events_file(directory, number)
        is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._path = path
        with writing(path):
            self._file = path.open("ab", buffering=0)
            write_whole(self._file, b"\n" if is_torn else b"")
        self._write({"event": "begin", "generation": generation})

    def event(self, what: str, teacher: str, **more: Any) -> None:
        """Something happened to a teacher."""
        self._write({"event": what, "teacher": teacher, **more})

    def doubt(self, batch: int) -> None:
        """Labels from this batch on may be wrong: the next life begins before them."""
        self._write({"event": "doubt", "batch": batch})

    def close(
        self, counts: Mapping[str, Counts], audits_missed: int, seconds_missing: float
    ) -> None:
        """Write what each teacher has done in this life, and close the file."""
        for teacher, found in sorted(counts.items()):
            self._write({"event": "counts", "teacher": teacher, **asdict(found)})
        more = {"audits_missed": audits_missed, "seconds_missing": seconds_missing}
        self._write({"event": "end", **more})
        self._file.close()

    def _write(self, values: Mapping[str, Any]) -> None:
        line = {"time_ns": time.monotonic_ns(), **values}
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with writing(self._path, len(data)):
            write_whole(self._file, data)


Fields = Sequence[torch.Tensor]


class StageErrands:
    """Batches that are wanted, and what is done with them.

    Args:
        make: what a teacher takes of a batch; called on the stage's thread.
        wake_stage: when something is wanted.
        wake_reader: when it is there.
    """

    def __init__(
        self,
        make: Callable[[int], Fields],
        wake_stage: Callable[[], None],
        wake_reader: Callable[[], None],
    ) -> None:
        self._make, self._wake_stage, self._wake_reader = make, wake_stage, wake_reader
        self._waiting: dict[int, list[Callable[[Fields], None]]] = {}
        self._wanted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[tuple[int, Fields]] = queue.SimpleQueue()

    def ask(self, number: int, then: Callable[[Fields], None]) -> None:
        """On the reader's thread: have a batch made, and then go on with it."""
        if number not in self._waiting:
            self._wanted.put(number)
            self._wake_stage()
        self._waiting.setdefault(number, []).append(then)

    def settle(self) -> None:
        """On the reader's thread: go on with what has been made."""
        while not self._made.empty():
            number, fields = self._made.get()
            for then in self._waiting.pop(number):
                then(fields)

    def run(self) -> None:
        """On the stage's thread: make what is wanted."""
        while not self._wanted.empty():
            number = self._wanted.get()
            self._made.put((number, self._make(number)))
            self._wake_reader()


EXAM_SECONDS = 60.0
"""That a teacher may take for one answer before it is admitted; then others have its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollEvents:
    """Whom a roll tells what: names of teachers, and numbers of batches."""

    joined: Callable[[str, float], None]
    """Admitted, with the seconds that a batch takes it."""
    left: Callable[[str], None]
    answered: Callable[[str, int, torch.Tensor], None]
    refused: Callable[[str, int], None]
    """It will not make this one."""
    note: Callable[[str], None]
    """A line for the user."""


class TeacherRoll:
    """Greets, examines, admits and dismisses; belongs to one thread.

    Args:
        asking: what is expected of teachers.
        share: which of how many students of the run this is.
        lines: to teachers.
        errands: make batches.
        record: of who came and went.
        events: who is told.
    """

    def __init__(
        self,
        asking: Asking,
        share: tuple[int, int],
        lines: TeacherLines,
        errands: StageErrands,
        record: LabelRecord,
        events: RollEvents,
    ) -> None:
        self._asking, self._share, self._lines = asking, share, lines
        self._errands, self._record, self._events = errands, record, events
        self._shown: Sequence[TeacherCard] = ()
        self._cards: dict[str, TeacherCard] = {}
        """Of those that there is a line to."""
        self._applicants: dict[str, Applicant] = {}
        self._refused: dict[str, TeacherCard] = {}
        self.last_no = ""
        """Why a teacher would not make a batch, the last time that one would not."""

    def look_at(self, cards: Sequence[TeacherCard]) -> None:
        """Greet who is new, and let go of who is not shown any longer."""
        for name in list(gone(self._cards, cards)):
            self._let_go(name, "left")
        for name in list(gone(self._refused, cards)):
            del self._refused[name]
        self._shown = cards
        self._share_out()

    def hear(self) -> None:
        """Take what teachers have said; what cannot be taken costs one its place."""
        for name, message in self._lines.heard():
            self._hear(name, message)
        now_ns = time.monotonic_ns()
        for name, applicant in list(self._applicants.items()):
            if now_ns - applicant.asked_ns > EXAM_SECONDS * 1e9:
                self._dismiss(name, f"expected an answer within {EXAM_SECONDS:g} s, found none")

    def request(self, name: str, number: int) -> None:
        """Ask a teacher for a label; with what it takes of the batch, where it has not the data."""
        if not self._asking.sends_fields:
            self._lines.send(name, LabelRequest(number))
            return
        card = self._cards[name]

        def send(fields: Fields) -> None:
            if self._cards.get(name) is card:
                self._lines.send(name, LabelRequest(number, tuple(fields)))

        self._errands.ask(number, send)

    def _hear(self, name: str, message: TeacherMessage | TransportError) -> None:
        applicant = self._applicants.get(name)
        match message:
            case TransportError():
                self._dismiss(name, str(message))
            case Stranger():  # its side of the line was lost
                card = self._cards[name]
                self._let_go(name, "left")
                self._greet(card)
            case Ready(found) if applicant is not None:
                if problem := class_problem(found, self._asking.terms):
                    self._dismiss(name, problem)
                else:
                    self._examine(name, applicant)
            case LabelAnswer(number, label) if applicant is not None:
                exam, now_ns = self._asking.terms.exam, time.monotonic_ns()
                if problem := applicant.answer(number, label, exam, now_ns):
                    self._dismiss(name, problem)
                else:
                    self._examine(name, applicant)
            case LabelAnswer(number, label):
                self._judge(name, number, label)
            case No(why, number) if number is None or applicant is not None:
                self._dismiss(name, why)
            case No(why, int(number)):
                self.last_no = why
                self._events.refused(name, number)

    def _judge(self, name: str, number: int, label: torch.Tensor) -> None:
        """Look at the shape of a label; the batch is made only for one that the exam had not."""
        exam, card = self._asking.terms.exam, self._cards[name]

        def judge(fields: Fields) -> None:
            if self._cards.get(name) is not card:
                return
            if problem := exam.shape_problem(number, label, shapes_of(fields)):
                self._dismiss(name, problem)
            else:
                self._events.answered(name, number, label)

        if problem := exam.misfit(label):
            self._dismiss(name, problem)
        elif exam.has_shape(label):
            self._events.answered(name, number, label)
        else:
            self._errands.ask(number, judge)

    def _share_out(self) -> None:
        """Greet this student's share; teachers of others go when one of its own is there."""
        while new := [each for each in self._mine if self._cards.get(each.name) != each]:
            for card in new:
                if card.name in self._cards:
                    self._let_go(card.name, "left")
                if problem := problem_of(card, self._asking.terms):
                    self._refuse(card, problem)
                else:
                    self._greet(card)
        mine = {card.name for card in self._mine}
        if not mine.isdisjoint(self._cards.keys() - self._applicants.keys()):
            for name in sorted(self._cards.keys() - mine):
                self._let_go(name, "moved")

    @property
    def _mine(self) -> Sequence[TeacherCard]:
        return share_of(self._shown, self._refused, self._share)

    def _greet(self, card: TeacherCard) -> None:
        try:
            self._lines.open(card)
        except TransportError as error:
            self._refuse(card, str(error))
            return
        exam = sorted(self._asking.terms.exam.digests)
        self._cards[card.name] = card
        self._applicants[card.name] = Applicant(card, exam, time.monotonic_ns())
        self._lines.send(card.name, Hello(self._asking.key))

    def _examine(self, name: str, applicant: Applicant) -> None:
        if (number := applicant.next_batch) is not None:
            applicant.asked_ns = time.monotonic_ns()
            self.request(name, number)
            return
        del self._applicants[name]
        self._record.event("joined", name, seconds=applicant.seconds)
        self._events.joined(name, max(applicant.seconds, 1e-6))
        self._share_out()

    def _let_go(self, name: str, how: str) -> None:
        """A line ends; what the teacher was asked for is asked of others."""
        self._lines.close(name)
        del self._cards[name]
        if self._applicants.pop(name, None) is None:
            self._record.event(how, name)
            self._events.left(name)

    def _dismiss(self, name: str, why: str) -> None:
        card = self._cards[name]
        self._let_go(name, "dismissed")
        self._refuse(card, why)
        self._share_out()

    def _refuse(self, card: TeacherCard, why: str) -> None:
        self._refused[card.name] = card
        self._record.event("refused", card.name, why=why)
        self._events.note(f"teacher {card.name:.80} is refused: {why}")


_MOST_WAIT_MS = 1000


class LabelReader:
    """Talks to every teacher that is introduced; delivers labels by batch.

    Args:
        asking: how.
        seat: of the source.
        watch: tells of teachers' cards.
    """

    def __init__(self, asking: Asking, seat: SourceSeat, watch: RegistryWatch) -> None:
        self._scheduler, self._seat, self._watch = asking.scheduler, seat, watch
        self._place = {batch: index for index, batch in enumerate(seat.batches)}
        """The scheduler counts the batches of this student only."""
        self._events: queue.SimpleQueue[tuple[type[Wanted] | type[Used], int]] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, torch.Tensor]] = queue.SimpleQueue()
        self._answers: dict[tuple[str, int], torch.Tensor] = {}
        self._newest: torch.Tensor | None = None
        """The answer that was taken last, unless its teacher had sent another one before."""
        self._patience = LabelPatience(asking.timeout_seconds, time.monotonic())
        self._doubt = Doubt()
        self._failure: NaspipeError | None = None
        self._is_closing = False
        self._wakeup = Wakeup()
        self._lines = TeacherLines(self._wakeup.fileno, watch.fileno)
        self._record = LabelRecord(seat.directory, seat.share[0], seat.generation)
        self._errands = StageErrands(asking.fields, seat.wake, self._wakeup.set)
        told = RollEvents(
            joined=lambda name, seconds: self._handle(TeacherJoined(_now(), name, seconds)),
            left=lambda name: self._handle(TeacherLeft(_now(), name)),
            answered=self._take_answer,
            refused=lambda name, number: self._handle(Refused(_now(), name, self._place[number])),
            note=seat.note,
        )
        self._roll = TeacherRoll(asking, seat.share, self._lines, self._errands, self._record, told)
        self._thread = threading.Thread(target=self._run, name="naspipe-labels", daemon=True)
        self._thread.start()

    def want(self, batch: int) -> None:
        """The stage will need a label."""
        self._tell(Wanted, batch)

    def take(self) -> list[tuple[int, torch.Tensor]]:
        """Labels that have come, each once; makes batches that the reader needs.

        Raises:
            ConfigError: when two teachers disagree, or when there has been none for too long.
        """
        if self._failure is not None:
            raise self._failure
        self._errands.run()
        return [self._delivered.get() for _ in range(self._delivered.qsize())]

    def used(self, batch: int) -> None:
        """The stage has taken a label."""
        self._tell(Used, batch)

    def close(self) -> None:
        """End the thread and its sockets."""
        self._is_closing = True
        self._wakeup.set()
        self._thread.join()
        self._wakeup.__exit__()
        self._watch.close()
        self._record.close(
            self._scheduler.counts, self._scheduler.audits_missed, self._patience.seconds
        )

    def _tell(self, kind: type[Wanted] | type[Used], batch: int) -> None:
        self._events.put((kind, self._place[batch]))
        self._wakeup.set()

    def _run(self) -> None:
        try:
            while not self._is_closing and self._failure is None:
                self._turn()
        except NaspipeError as error:
            self._failure = error
        except Exception as error:  # the stage has to hear of it, whatever it is
            self._failure = TransportError(f"labels: {type(error).__name__}: {error}")
        finally:
            self._lines.end()
            self._seat.wake()

    def _turn(self) -> None:
        due, wait_ms = self._scheduler.deadline_ns, _MOST_WAIT_MS
        if due is not None:
            wait_ms = min(wait_ms, max(0, -(-(due - _now()) // 1_000_000)))
        ready = self._lines.wait(wait_ms)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        while not self._events.empty():
            kind, place = self._events.get()
            self._handle(kind(_now(), place))
        if self._watch.fileno() in ready and (cards := self._watch.take()) is not None:
            self._roll.look_at(cards)
        self._errands.settle()
        self._roll.hear()
        if due is not None and due <= _now():
            self._handle(Tick(_now()))
        missing = self._scheduler.first_missing
        batch = None if missing is None else self._seat.batches[missing]
        teachers, why = len(self._scheduler.teachers), self._roll.last_no
        if said := self._patience.tell(time.monotonic(), batch, teachers, why):
            self._seat.note(said)

    def _take_answer(self, name: str, number: int, label: torch.Tensor) -> None:
        place = self._place[number]
        self._newest = None if (name, place) in self._answers else label
        if self._newest is not None:
            self._answers[name, place] = label
            self._doubt.answered(number, name)
        self._handle(Answered(_now(), name, place, label_digest(label)))

    def _handle(self, event: Event) -> None:
        for command in self._scheduler.handle(event):
            match command:
                case Ask(teacher, place):
                    self._roll.request(teacher, self._seat.batches[place])
                case Deliver(place, teacher):
                    self._deliver(place, teacher)
                case Drop(teacher, place):
                    if self._newest is not None:  # otherwise an earlier one is still looked at
                        self._answers.pop((teacher, place), None)
                        self._doubt.dropped(self._seat.batches[place], teacher)
                case Conflict(place, teachers, _):
                    raise self._conflict(place, teachers)
                case Hire(count):
                    self._record.event("hire", "", count=count)
                    self._watch.hire(count)
                case Release(teacher):
                    self._record.event("released", teacher)
                    self._watch.release(teacher)

    def _deliver(self, place: int, teacher: str) -> None:
        batch = self._seat.batches[place]
        makers = sorted(name for name, of in self._answers if of == place)
        self._doubt.delivered(batch, makers)
        self._delivered.put((batch, self._answers[teacher, place]))
        for name in makers:
            del self._answers[name, place]
        self._seat.wake()

    def _conflict(self, place: int, teachers: tuple[str, str]) -> ConfigError:
        """Two teachers do not agree, and earlier labels of one of them may be wrong, too."""
        batch = self._seat.batches[place]
        first = min((batch, *(self._doubt.since(name, batch) for name in teachers)))
        self._record.doubt(first)
        return ConfigError(
            f"labels: expected the same bits of batch {batch} from all teachers, found others from "
            f"{' and '.join(teachers)}; labels from batch {first} on are in doubt; leave one "
            f"teacher out and resume the run, which then begins before them"
        )


def _now() -> int:
    return time.monotonic_ns()
