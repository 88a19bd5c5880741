"""Admission of remote teachers: a teacher is checked before it may compute labels for a student.

A teacher introduces itself with its card. If the card has the right weights, numeric class and key,
the student greets the teacher and requests the labels of one batch of every shape. Only a teacher
whose labels are bitwise equal to those of the student's own process is admitted and receives
further requests.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from naspipe.config.errors import TransportError
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
from naspipe.distill.label_network import LabelNetwork, check_draws, label_digest
from naspipe.distill.registry import RegistryWatch
from naspipe.distill.teacher_card import TeacherCard
from naspipe.jobs.ports import SourceSeat
from naspipe.jobs.workload import Workload
from naspipe.label_scheduler.balance import balanced
from naspipe.label_scheduler.messages import Event, Refused, TeacherJoined, TeacherLeft
from naspipe.label_scheduler.scheduler import LabelScheduler

Shapes = tuple[tuple[int, ...], ...]
Fields = Sequence[torch.Tensor]

SEARCHED_BATCHES = 64
"""Shapes are searched for among this number of first batches, and in the last batch."""

ANSWER_SECONDS = 60.0
"""Time limit for one answer before a teacher is admitted; after it the teacher loses its place."""


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """Batches with the digests of their labels, one batch of every shape."""

    digests: dict[int, str]
    dtype: torch.dtype
    trailing: tuple[int | None, ...]
    """Sizes of a label after the first dimension; None where batches differ."""
    shapes: Mapping[Shapes, torch.Size]
    """The shape of a label, by the shapes of the fields that the teacher takes from its batch."""
    fields: Mapping[int, Shapes]
    """The shapes of the fields of each batch of the check."""

    def misfit(self, label: torch.Tensor) -> str:
        """Return why no label of the run can have this dtype and shape; empty if it can."""
        if label.dtype == self.dtype and label.dim() == 1 + len(self.trailing):
            pairs = zip(label.shape[1:], self.trailing, strict=True)
            if all(expected in (None, found) for found, expected in pairs):
                return ""
        return (
            f"expected labels of {self.dtype} and {self.trailing} a sample, found {label.dtype} "
            f"and {tuple(label.shape[1:])}"
        )

    def shape_problem(self, number: int, label: torch.Tensor, taken: Shapes) -> str:
        """Return why the label of a batch with these fields has a wrong shape, or an empty text."""
        expected = self.shapes.get(taken, label.shape)
        if expected == label.shape:
            return ""
        return (
            f"expected a label of {tuple(expected)} for batch {number}, found {tuple(label.shape)}"
        )


def make_admission_check(teacher: Workload, device: str, batches: Sequence[int]) -> AdmissionCheck:
    """Compute the labels of one batch of every shape among those that a student will request.

    Raises:
        ConfigError: if they cannot be computed.
    """
    network = LabelNetwork.of(teacher, device)
    digests: dict[int, str] = {}
    found: dict[Shapes, torch.Size] = {}
    taken: dict[int, Shapes] = {}
    for number in (*batches[:SEARCHED_BATCHES], *batches[-1:]):
        fields = network.fields(number)
        shapes = _shapes(chain.from_iterable(fields))
        if shapes not in found:
            label = network.label_of(number, fields).cpu()
            found[shapes] = label.shape
            digests[number], taken[number] = label_digest(label), shapes
            check_draws(network, number, fields)
    sizes = (set(each) for each in zip(*(shape[1:] for shape in found.values()), strict=True))
    trailing = tuple(each.pop() if len(each) == 1 else None for each in sizes)
    return AdmissionCheck(digests, label.dtype, trailing, found, taken)


def _shapes(fields: Iterable[torch.Tensor]) -> Shapes:
    return tuple(tuple(each.shape) for each in fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a student expects of its teachers."""

    digest: str
    """Digest of their weights."""
    numeric_class: str
    """Numeric class of the process that computed the labels of the check."""
    check: AdmissionCheck
    keys: frozenset[str]
    """Known CURVE keys; see :func:`naspipe.distill.teacher_card.read_keys`."""
    private: str
    """Prefix of the addresses of the run's own teachers, which need no key."""

    def card_problem(self, card: TeacherCard) -> str:
        """Return why a teacher is refused because of its card; empty if it may be greeted."""
        if card.public_key:
            if card.public_key not in self.keys:
                return f"expected a key of teacher_keys, found {card.public_key:.40}"
        elif not (
            card.address.startswith(self.private)
            and "/" not in card.address.removeprefix(self.private)
        ):
            return f"expected a key of teacher_keys, found none at {card.address:.80}"
        if card.digest != self.digest:
            return f"expected a teacher of digest {self.digest}, found {card.digest:.80}"
        return self.class_problem(card.numeric_class)

    def class_problem(self, found: str) -> str:
        """Return why a teacher is refused because of its numeric class; empty if it matches."""
        if found == self.numeric_class:
            return ""
        return f"expected {self.numeric_class}, found {found:.200}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a student requests labels."""

    scheduler: LabelScheduler
    watch: RegistryWatch
    key: dict[str, Any]
    """Identifies the labels; see :func:`naspipe.distill.label_file.label_key`."""
    terms: Terms
    timeout_seconds: float
    """Time limit for one label, after which the run ends."""
    fields: Callable[[int], Fields]
    """Returns the fields that a teacher takes from a batch; called only on the stage's thread."""
    sends_fields: bool = False
    """True if the fields are sent with each request because teachers do not have the data."""


@dataclass(slots=True)
class Applicant:
    """A teacher that was greeted and is being checked."""

    left: list[int]
    """Batches of the check that it has not answered, in order."""
    asked_ns: int
    """Time at which it was greeted or last asked."""
    seconds: float = 0.0
    """Time of its fastest answer."""

    def answer(self, number: int, label: torch.Tensor, check: AdmissionCheck, now_ns: int) -> str:
        """Record an answer, and return why the teacher has failed; empty if the answer is right."""
        expected = self.left[0] if self.left else None
        if number != expected:
            return f"expected the label of batch {expected}, found that of {number}"
        if problem := check.misfit(label):
            return problem
        if problem := check.shape_problem(number, label, check.fields[number]):
            return problem
        if check.digests.get(number) != label_digest(label):
            return f"expected the bits of this run's label of batch {number}, found others"
        took = (now_ns - self.asked_ns) / 1e9
        self.seconds = min(self.seconds, took) if self.seconds else took
        del self.left[0]
        return ""


def share_of(
    shown: Collection[TeacherCard], refused: Mapping[str, TeacherCard], share: tuple[int, int]
) -> list[TeacherCard]:
    """Return the teachers of one student; the teachers are divided evenly among all students.

    As long as there is any teacher, every student has one. Every student computes its share from
    the cards alone, because all students eventually see the same cards. Teachers that a student has
    refused are omitted.

    Args:
        shown: cards of all teachers.
        refused: cards that this student has refused, by name.
        share: the number of this student, and the total number of students.
    """
    able = [card for card in shown if refused.get(card.name) != card]
    which, count = share
    students = [f"{number:06}" for number in range(count)]
    mine = balanced(students, [card.name for card in able])[students[which]]
    return [card for card in able if card.name in mine]


class StageBatches:
    """Batches that the reader's thread needs and the stage's thread computes.

    ``make`` returns the fields that a teacher takes from a batch; the other two functions are
    called when a batch is needed and when it is ready.
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
        """Request a batch, and call ``then`` with it when ready; called on the reader's thread."""
        if number not in self._waiting:
            self._wanted.put(number)
            self._wake_stage()
        self._waiting.setdefault(number, []).append(then)

    def settle(self) -> None:
        """Call the callbacks of the batches that are ready; called on the reader's thread."""
        while not self._made.empty():
            number, fields = self._made.get()
            for then in self._waiting.pop(number):
                then(fields)

    def run(self) -> None:
        while not self._wanted.empty():
            number = self._wanted.get()
            self._made.put((number, self._make(number)))
            self._wake_reader()


class Admission:
    """Greets, checks, admits and dismisses teachers; belongs to one thread.

    Args:
        asking: how the student requests labels, and what it expects.
        seat: the seat of the source.
        lines: connections to teachers.
        batches: made by the stage.
        record: called with an event, the name of its teacher and further values.
        handle: takes events for the label scheduler, which counts the batches of ``seat``.
        take_answer: called with labels of admitted teachers: name, number of the batch, label.
    """

    def __init__(
        self,
        asking: Asking,
        seat: SourceSeat,
        lines: TeacherLines,
        batches: StageBatches,
        record: Callable[..., None],
        handle: Callable[[Event], None],
        take_answer: Callable[[str, int, torch.Tensor], None],
    ) -> None:
        self._asking, self._seat, self._lines, self._batches = asking, seat, lines, batches
        self._record, self._handle, self._take_answer = record, handle, take_answer
        self._places = {batch: place for place, batch in enumerate(seat.batches)}
        self._shown: Sequence[TeacherCard] = ()
        self._cards: dict[str, TeacherCard] = {}
        """Cards of the teachers that have a line."""
        self._applicants: dict[str, Applicant] = {}
        self._refused: dict[str, TeacherCard] = {}
        self.last_no = ""
        """The last reason for which a teacher refused a batch."""

    def update(self, cards: Sequence[TeacherCard]) -> None:
        """Greet new teachers, and drop teachers whose cards are no longer published."""
        shown = {card.name for card in cards}
        for name in sorted(self._cards.keys() - shown):
            self._let_go(name, "left")
        for name in self._refused.keys() - shown:
            del self._refused[name]
        self._shown = cards
        self._share_out()

    def hear(self) -> None:
        """Process what teachers have sent; a teacher that sends something invalid is dismissed."""
        for name, message in self._lines.heard():
            self._hear(name, message)
        now_ns = time.monotonic_ns()
        for name, applicant in list(self._applicants.items()):
            if now_ns - applicant.asked_ns > ANSWER_SECONDS * 1e9:
                self._dismiss(name, f"expected an answer within {ANSWER_SECONDS:g} s, found none")

    def request(self, name: str, number: int) -> None:
        """Request a label from a teacher, with the batch fields if it does not have the data."""
        if not self._asking.sends_fields:
            self._lines.send(name, LabelRequest(number))
            return
        card = self._cards[name]

        def send(fields: Fields) -> None:
            if self._cards.get(name) is card:
                self._lines.send(name, LabelRequest(number, tuple(fields)))

        self._batches.ask(number, send)

    def _hear(self, name: str, message: TeacherMessage | TransportError) -> None:
        applicant, terms = self._applicants.get(name), self._asking.terms
        match message:
            case TransportError():
                self._dismiss(name, str(message))
            case Stranger():  # the teacher has lost its side of the line
                card = self._cards[name]
                self._let_go(name, "left")
                self._greet(card)
            case Ready(found) if applicant is not None:
                if problem := terms.class_problem(found):
                    self._dismiss(name, problem)
                else:
                    self._check_next(name, applicant)
            case LabelAnswer(number, label) if applicant is not None:
                if problem := applicant.answer(number, label, terms.check, time.monotonic_ns()):
                    self._dismiss(name, problem)
                else:
                    self._check_next(name, applicant)
            case LabelAnswer(number, label):
                if problem := terms.check.misfit(label):
                    self._dismiss(name, problem)
                elif label.shape in terms.check.shapes.values():
                    self._take_answer(name, number, label)
                else:  # the batch determines whether this shape is right
                    self._check_shape(name, number, label)
            case No(why, number) if number is None or applicant is not None:
                self._dismiss(name, why)
            case No(why, int(number)):
                self.last_no = why
                self._handle(Refused(time.monotonic_ns(), name, self._places[number]))

    def _check_shape(self, name: str, number: int, label: torch.Tensor) -> None:
        check, card = self._asking.terms.check, self._cards[name]

        def judge(fields: Fields) -> None:
            if self._cards.get(name) is not card:
                return
            if problem := check.shape_problem(number, label, _shapes(fields)):
                self._dismiss(name, problem)
            else:
                self._take_answer(name, number, label)

        self._batches.ask(number, judge)

    def _share_out(self) -> None:
        """Greet this student's share; drop others once a teacher of the share is admitted."""
        while new := [each for each in self._share() if self._cards.get(each.name) != each]:
            for card in new:
                if card.name in self._cards:
                    self._let_go(card.name, "left")
                if problem := self._asking.terms.card_problem(card):
                    self._refuse(card, problem)
                else:
                    self._greet(card)
        mine = {card.name for card in self._share()}
        if not mine.isdisjoint(self._cards.keys() - self._applicants.keys()):
            for name in sorted(self._cards.keys() - mine):
                self._let_go(name, "moved")

    def _share(self) -> Sequence[TeacherCard]:
        return share_of(self._shown, self._refused, self._seat.share)

    def _greet(self, card: TeacherCard) -> None:
        try:
            self._lines.open(card)
        except TransportError as error:
            self._refuse(card, str(error))
            return
        batches = sorted(self._asking.terms.check.digests)
        self._cards[card.name] = card
        self._applicants[card.name] = Applicant(batches, time.monotonic_ns())
        self._lines.send(card.name, Hello(self._asking.key))

    def _check_next(self, name: str, applicant: Applicant) -> None:
        """Request the next batch of the check, or admit the teacher."""
        if applicant.left:
            applicant.asked_ns = time.monotonic_ns()
            self.request(name, applicant.left[0])
            return
        del self._applicants[name]
        self._record("joined", name, seconds=applicant.seconds)
        self._handle(TeacherJoined(time.monotonic_ns(), name, max(applicant.seconds, 1e-6)))
        self._share_out()

    def _let_go(self, name: str, how: str) -> None:
        """Close the line; the teacher's open requests are sent to others."""
        self._lines.close(name)
        del self._cards[name]
        if self._applicants.pop(name, None) is None:
            self._record(how, name)
            self._handle(TeacherLeft(time.monotonic_ns(), name))

    def _dismiss(self, name: str, why: str) -> None:
        card = self._cards[name]
        self._let_go(name, "dismissed")
        self._refuse(card, why)
        self._share_out()

    def _refuse(self, card: TeacherCard, why: str) -> None:
        self._refused[card.name] = card
        self._record("refused", card.name, why=why)
        self._seat.note(f"teacher {card.name:.80} is refused: {why}")
