"""Who may be asked: a teacher is looked at from its card to the last batch of its exam."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from naspipe.label_scheduler.balance import balanced
from naspipe.label_scheduler.scheduler import Desk
from naspipe.runtime.labels.entrance_exam import Exam
from naspipe.runtime.registries.teacher_card import TeacherCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a student expects of its teachers."""

    digest: str
    """Of their weights."""
    numeric_class: str
    """Of the process that made the exam."""
    exam: Exam
    keys: frozenset[str]
    """CURVE keys that are known; see :func:`naspipe.runtime.labels.teacher_keys.read_keys`."""
    private: str
    """What the addresses of the run's own teachers begin with, who need no key."""


def problem_of(card: TeacherCard, terms: Terms) -> str:
    """Why a teacher is refused by its card alone; empty where it may be greeted."""
    if card.public_key:
        if card.public_key not in terms.keys:
            return f"expected a key of teacher_keys, found {card.public_key:.40}"
    elif not _is_within(card.address, terms.private):
        return f"expected a key of teacher_keys, found none at {card.address:.80}"
    if card.digest != terms.digest:
        return f"expected a teacher of digest {terms.digest}, found {card.digest:.80}"
    return class_problem(card.numeric_class, terms)


def _is_within(address: str, private: str) -> bool:
    """Whether a socket lies in the run's private directory, and not below or beside it."""
    return address.startswith(private) and "/" not in address.removeprefix(private)


def class_problem(found: str, terms: Terms) -> str:
    """Why a teacher is refused for what it computes with; empty where that is alike."""
    if found == terms.numeric_class:
        return ""
    return f"expected {terms.numeric_class}, found {found:.200}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a student asks."""

    desk: Desk
    key: dict[str, Any]
    """Whose labels; see :func:`naspipe.runtime.labels.label_file.label_key`."""
    terms: Terms
    timeout_seconds: float
    """For one label, until the run ends."""
    fields: Callable[[int], Sequence[torch.Tensor]]
    """What a teacher takes of a batch; called on the stage's thread only."""
    sends_fields: bool = False
    """Whether they go with each request, as teachers have not the data."""


@dataclass(slots=True)
class Applicant:
    """A teacher that was greeted and is examined."""

    card: TeacherCard
    left: list[int] = field(default_factory=list)
    """Batches of the exam that it has not answered, the next one first."""
    asked_ns: int = 0
    """When it was greeted, or asked for the next batch."""
    seconds: float = 0.0
    """Of its fastest answer."""

    @property
    def next_batch(self) -> int | None:
        """What to ask it; None when it has answered everything."""
        return self.left[0] if self.left else None

    def answer(self, number: int, label: torch.Tensor, exam: Exam, now_ns: int) -> str:
        """Take an answer.

        Returns:
            Why it has failed; empty where the answer is right.
        """
        if number != self.next_batch:
            return f"expected the label of batch {self.next_batch}, found that of {number}"
        if problem := exam.misfit(label):
            return problem
        if problem := exam.shape_problem(number, label, exam.fields[number]):
            return problem
        if not exam.is_right(number, label):
            return f"expected the bits of this run's label of batch {number}, found others"
        took = (now_ns - self.asked_ns) / 1e9
        self.seconds = min(self.seconds, took) if self.seconds else took
        del self.left[0]
        return ""


def gone(known: Collection[str], cards: Collection[TeacherCard]) -> Iterator[str]:
    """Teachers whose cards are shown no longer, in order."""
    shown = {card.name for card in cards}
    return (name for name in sorted(known) if name not in shown)


def share_of(
    shown: Collection[TeacherCard], refused: Mapping[str, TeacherCard], share: tuple[int, int]
) -> list[TeacherCard]:
    """The teachers of one student, evenly among all: so none is without one while there is any.

    Every student works it out by itself, from the cards alone, as all see the same ones sooner or
    later. A teacher that it has refused is none for it.

    Args:
        shown: cards of all teachers.
        refused: cards that this student has refused, by name.
        share: the number of this student, and how many there are.
    """
    able = [card for card in shown if refused.get(card.name) != card]
    which, count = share
    students = [f"{number:06}" for number in range(count)]
    mine = balanced(students, [card.name for card in able])[students[which]]
    return [card for card in able if card.name in mine]
