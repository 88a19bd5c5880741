"""A student's thread that asks teachers for labels, as its desk says."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import torch

from naspipe.core.errors import ConfigError, NaspipeError, TransportError
from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.labels.applicants import Applicant, class_problem, gone, problem_of
from naspipe.runtime.labels.asking import Asking
from naspipe.runtime.labels.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
)
from naspipe.runtime.labels.label_network import label_digest
from naspipe.runtime.labels.label_record import LabelRecord
from naspipe.runtime.labels.teacher_lines import TeacherLines
from naspipe.runtime.registries.registry_watch import RegistryWatch
from naspipe.runtime.registries.teacher_card import TeacherCard
from naspipe.runtime.wire.wakeup import Wakeup
from naspipe.tutoring.balance import balanced
from naspipe.tutoring.commands import Ask, Conflict, Deliver, Drop, Hire, Release
from naspipe.tutoring.events import (
    Answered,
    Event,
    Refused,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)

_MOST_WAIT_MS = 1000
_NOTE_SECONDS = 60.0


class LabelReader:
    """Talks to every teacher that is introduced; delivers labels by batch.

    Args:
        asking: how.
        seat: of the source.
        watch: tells of teachers' cards.
    """

    def __init__(self, asking: Asking, seat: SourceSeat, watch: RegistryWatch) -> None:
        self._asking = asking
        self._desk, self._seat, self._watch = asking.desk, seat, watch
        self._place = {batch: index for index, batch in enumerate(seat.batches)}
        """The desk counts the batches of this student only."""
        self._events: queue.SimpleQueue[tuple[type[Wanted] | type[Used], int]] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, torch.Tensor]] = queue.SimpleQueue()
        self._answers: dict[tuple[str, int], torch.Tensor] = {}
        self._newest: torch.Tensor | None = None
        """The answer that was taken last, unless its teacher had sent another one before."""
        self._applicants: dict[str, Applicant] = {}
        self._cards: dict[str, TeacherCard] = {}
        self._refused: dict[str, TeacherCard] = {}
        self._alone_since = time.monotonic()
        self._noted = self._alone_since
        self._failure: NaspipeError | None = None
        self._is_closing = False
        self._missing_since: float | None = None
        self._seconds_missing = 0.0
        """In which the stage had asked for a label that was not there."""
        self._wakeup = Wakeup()
        self._lines = TeacherLines(self._wakeup.fileno, watch.fileno)
        self._record = LabelRecord(seat.directory, seat.share[0], seat.generation)
        self._thread = threading.Thread(target=self._run, name="naspipe-labels", daemon=True)
        self._thread.start()

    def want(self, batch: int) -> None:
        """The stage will need a label."""
        self._tell(Wanted, batch)

    def take(self) -> list[tuple[int, torch.Tensor]]:
        """Labels that have come, each once.

        Raises:
            ConfigError: when two teachers disagree, or when there has been none for too long.
        """
        if self._failure is not None:
            raise self._failure
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
        self._record.close(self._desk.counts, self._desk.audits_missed, self._seconds_missing)

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
        due = self._desk.deadline_ns
        wait_ms = _MOST_WAIT_MS
        if due is not None:
            wait_ms = min(wait_ms, max(0, -(-(due - time.monotonic_ns()) // 1_000_000)))
        ready = self._lines.wait(wait_ms)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        while not self._events.empty():
            kind, place = self._events.get()
            self._handle(kind(time.monotonic_ns(), place))
        if self._watch.fileno() in ready:
            self._look_at(self._watch.take())
        for name, message in self._lines.heard():
            self._hear(name, message)
        if due is not None and due <= time.monotonic_ns():
            self._handle(Tick(time.monotonic_ns()))
        self._mind_being_alone()

    def _look_at(self, cards: Sequence[TeacherCard]) -> None:
        """Greet who is new, and let go of who is not shown any longer."""
        for name in list(gone(self._cards, cards)):
            self._let_go(name, "left")
        for name in list(gone(self._refused, cards)):
            del self._refused[name]
        which, count = self._seat.share
        students = [f"{number:06}" for number in range(count)]
        mine = balanced(students, [card.name for card in cards])[students[which]]
        for card in cards:
            known = self._cards.get(card.name)
            if card.name not in mine or known == card or self._refused.get(card.name) == card:
                continue
            if known is not None:
                self._let_go(card.name, "left")
            if problem := problem_of(card, self._asking.terms):
                self._refuse(card, problem)
            else:
                self._greet(card)

    def _greet(self, card: TeacherCard) -> None:
        try:
            self._lines.open(card)
        except TransportError as error:
            self._refuse(card, str(error))
            return
        self._cards[card.name] = card
        self._applicants[card.name] = Applicant(card, sorted(self._asking.terms.exam.digests))
        self._lines.send(card.name, Hello(self._asking.key))

    def _hear(self, name: str, message: Ready | LabelAnswer | No | TransportError) -> None:
        """A message of a teacher; what cannot be read costs it its place."""
        now_ns, applicant = time.monotonic_ns(), self._applicants.get(name)
        match message:
            case TransportError():
                self._dismiss(name, str(message))
            case Ready(found) if applicant is not None:
                if problem := class_problem(found, self._asking.terms):
                    self._dismiss(name, problem)
                else:
                    self._examine(name, applicant)
            case LabelAnswer(number, label) if applicant is not None:
                problem = applicant.answer(number, label, self._asking.terms.exam, now_ns)
                if problem:
                    self._dismiss(name, problem)
                else:
                    self._examine(name, applicant)
            case LabelAnswer(number, label):
                self._take_answer(name, number, label)
            case No(why, number) if number is None or applicant is not None:
                self._dismiss(name, why)
            case No(_, int(number)):
                self._handle(Refused(now_ns, name, self._place[number]))

    def _examine(self, name: str, applicant: Applicant) -> None:
        number = applicant.next_batch
        if number is not None:
            applicant.asked_ns = time.monotonic_ns()
            self._lines.send(name, self._request(number))
            return
        del self._applicants[name]
        self._record.event("joined", name, seconds=applicant.seconds)
        self._handle(TeacherJoined(time.monotonic_ns(), name, max(applicant.seconds, 1e-6)))

    def _take_answer(self, name: str, number: int, label: torch.Tensor) -> None:
        place = self._place[number]
        if problem := self._asking.terms.exam.misfit(number, label):
            self._dismiss(name, problem)
        else:
            self._newest = None if (name, place) in self._answers else label
            self._answers.setdefault((name, place), label)
            self._handle(Answered(time.monotonic_ns(), name, place, label_digest(label)))

    def _handle(self, event: Event) -> None:
        for command in self._desk.handle(event):
            match command:
                case Ask(teacher, place):
                    self._lines.send(teacher, self._request(self._seat.batches[place]))
                case Deliver(place, teacher):
                    self._delivered.put((self._seat.batches[place], self._answers[teacher, place]))
                    for key in [key for key in self._answers if key[1] == place]:
                        del self._answers[key]
                    self._seat.wake()
                case Drop(teacher, place):
                    if self._newest is not None:  # otherwise an earlier one is still looked at
                        self._answers.pop((teacher, place), None)
                case Conflict(place, teachers, _):
                    raise ConfigError(
                        f"labels: expected the same bits of batch {self._seat.batches[place]} from "
                        f"all teachers, found others from {' and '.join(teachers)}; leave one out "
                        f"and resume the run"
                    )
                case Hire(count):
                    self._record.event("hire", "", count=count)
                    self._watch.hire(count)
                case Release(teacher):
                    self._record.event("released", teacher)
                    self._watch.release(teacher)

    def _request(self, number: int) -> LabelRequest:
        fields = self._asking.fields
        return LabelRequest(number, tuple(fields(number)) if fields else ())

    def _let_go(self, name: str, how: str) -> None:
        """A teacher is gone; what it was asked for is asked of others."""
        self._lines.close(name)
        del self._cards[name]
        if self._applicants.pop(name, None) is None:
            self._record.event(how, name)
            self._handle(TeacherLeft(time.monotonic_ns(), name))

    def _dismiss(self, name: str, why: str) -> None:
        card = self._cards[name]
        self._let_go(name, "dismissed")
        self._refuse(card, why)

    def _refuse(self, card: TeacherCard, why: str) -> None:
        self._refused[card.name] = card
        self._record.event("refused", card.name, why=why)
        self._seat.note(f"teacher {card.name:.80} is refused: {why}")

    def _mind_being_alone(self) -> None:
        """Say once a minute that nobody is there, and end the run when that lasts.

        Raises:
            ConfigError: when it has lasted too long.
        """
        now, missing = time.monotonic(), self._desk.first_missing
        if self._missing_since is not None:
            self._seconds_missing += now - self._missing_since
        self._missing_since = None if missing is None else now
        if missing is None or self._desk.teachers:
            self._alone_since = self._noted = now
            return
        alone, batch = now - self._alone_since, self._seat.batches[missing]
        if alone >= self._asking.timeout_seconds:
            raise ConfigError(
                f"labels: expected a teacher within {self._asking.timeout_seconds:g} s "
                f"(timeout_seconds), found none; the first label that is missing is that of batch "
                f"{batch}; start one with naspipe teach and resume the run"
            )
        if now - self._noted >= _NOTE_SECONDS:
            self._noted = now
            self._seat.note(f"no teacher for {alone:.0f} s; the label of batch {batch} is missing")
