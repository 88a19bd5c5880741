"""Who teaches a student: from a card that is shown to the end of a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from naspipe.config.errors import TransportError
from naspipe.runtime.labels.applicants import (
    Applicant,
    Asking,
    class_problem,
    gone,
    problem_of,
    share_of,
)
from naspipe.runtime.labels.entrance_exam import shapes_of
from naspipe.runtime.labels.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    Stranger,
    TeacherMessage,
)
from naspipe.runtime.labels.label_record import LabelRecord
from naspipe.runtime.labels.stage_errands import Fields, StageErrands
from naspipe.runtime.labels.teacher_lines import TeacherLines
from naspipe.runtime.registries.teacher_card import TeacherCard

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
