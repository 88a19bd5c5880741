"""Who may be asked: a teacher is looked at from its card to the last batch of its exam."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from naspipe.distill.label_network import LabelNetwork, check_draws, label_digest
from naspipe.distill.teacher_card import TeacherCard
from naspipe.jobs.workload import Workload
from naspipe.label_scheduler.balance import balanced
from naspipe.label_scheduler.scheduler import LabelScheduler

Shapes = tuple[tuple[int, ...], ...]

LOOKED_AT = 64
"""Batches, from the first, among which shapes are looked for; and the last one."""


@dataclass(frozen=True, slots=True)
class Exam:
    """Batches, and the digests of their labels."""

    digests: dict[int, str]
    dtype: torch.dtype
    trailing: tuple[int | None, ...]
    """Sizes of a label behind its first; None for one that is not the same in all batches."""
    shapes: Mapping[Shapes, torch.Size]
    """Of a label, by the shapes of what the teacher takes of its batch."""
    fields: Mapping[int, Shapes]
    """Of what the teacher takes of each batch of the exam."""

    def is_right(self, number: int, label: torch.Tensor) -> bool:
        """Whether a label of one of the batches has the right bits."""
        return self.digests.get(number) == label_digest(label)

    def misfit(self, label: torch.Tensor) -> str:
        """Why no label can look so; empty where it may."""
        if label.dtype == self.dtype and label.dim() == 1 + len(self.trailing):
            pairs = zip(label.shape[1:], self.trailing, strict=True)
            if all(expected in (None, found) for found, expected in pairs):
                return ""
        return (
            f"expected labels of {self.dtype} and {self.trailing} a sample, found {label.dtype} "
            f"and {tuple(label.shape[1:])}"
        )

    def has_shape(self, label: torch.Tensor) -> bool:
        """Whether a label of the exam had this shape."""
        return label.shape in self.shapes.values()

    def shape_problem(self, number: int, label: torch.Tensor, taken: Shapes) -> str:
        """Why the label of a batch cannot have this shape; empty where it may.

        Args:
            number: of the batch.
            label: its label.
            taken: shapes of what the teacher takes of the batch.
        """
        expected = self.shapes.get(taken, label.shape)
        if expected == label.shape:
            return ""
        return (
            f"expected a label of {tuple(expected)} for batch {number}, found {tuple(label.shape)}"
        )


def make_exam(teacher: Workload, device: str, batches: Sequence[int]) -> Exam:
    """Compute the labels of one batch of every shape.

    Args:
        teacher: its network.
        device: where this process computes.
        batches: that a student will ask for, in order.

    Raises:
        ConfigError: when they cannot be computed.
    """
    network = LabelNetwork.of(teacher, device)
    digests: dict[int, str] = {}
    found: dict[Shapes, torch.Size] = {}
    taken: dict[int, Shapes] = {}
    for number in (*batches[:LOOKED_AT], *batches[-1:]):
        fields = network.fields(number)
        shapes = shapes_of(chain.from_iterable(fields))
        if shapes not in found:
            label = network.label_of(number, fields).cpu()
            found[shapes] = label.shape
            digests[number], taken[number] = label_digest(label), shapes
            check_draws(network, number, fields)
    sizes = (set(each) for each in zip(*(shape[1:] for shape in found.values()), strict=True))
    trailing = tuple(each.pop() if len(each) == 1 else None for each in sizes)
    return Exam(digests, label.dtype, trailing, found, taken)


def shapes_of(fields: Iterable[torch.Tensor]) -> Shapes:
    """Of what a teacher takes of a batch."""
    return tuple(tuple(each.shape) for each in fields)


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

    scheduler: LabelScheduler
    key: dict[str, Any]
    """Whose labels; see :func:`naspipe.distill.label_file.label_key`."""
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
