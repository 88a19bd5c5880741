"""Where each label is: not taken up, asked for, held, or gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from naspipe.core.errors import InvariantError

Answer = tuple[str, str | bytes]
"""A teacher, and the digest of what it made."""


@dataclass(slots=True)
class Label:
    """One label from the time it is taken up until it is used."""

    batch: int
    copies: int
    """Teachers that have to make it: two for an audited one."""
    asked_of: set[str] = field(default_factory=set)
    """Every teacher that was ever asked, those that left included."""
    active: set[str] = field(default_factory=set)
    """Teachers that are counted on for an answer."""
    late: set[str] = field(default_factory=set)
    """Teachers that missed a deadline and may still answer."""
    answers: list[Answer] = field(default_factory=list)
    """Those that agree, the first first."""
    is_held: bool = False
    is_disputed: bool = False
    """Answers differ: never delivered."""
    limit_ns: int | None = None
    """When an audit that has one answer waits no longer."""

    @property
    def open(self) -> int:
        """Teachers that have to be asked yet."""
        if self.is_held or self.is_disputed:
            return 0
        return max(0, self.copies - len(self.active) - len(self.answers))

    def may_be_asked_of(self, teacher: str) -> bool:
        """Whether this teacher neither has it under way nor made it."""
        busy = teacher in self.active or teacher in self.late
        return not busy and all(teacher != name for name, _ in self.answers)

    def forget(self, teacher: str) -> None:
        """Nothing more is under way there."""
        self.active.discard(teacher)
        self.late.discard(teacher)


class LabelTable:
    """All labels of a run, in memory only those between taken up and used.

    Args:
        first_batch: lower ones count as gone.
    """

    def __init__(self, first_batch: int) -> None:
        self._labels: dict[int, Label] = {}
        self._missing: set[int] = set()
        self._below = first_batch
        self._gone: set[int] = set()
        """At or above ``_below``, below which all are gone."""
        self.frontier = first_batch
        """The lowest batch that was never taken up; all lower ones were."""
        self.num_held = 0

    def __len__(self) -> int:
        """Labels that are asked for, to be asked for, or held."""
        return len(self._labels)

    def __iter__(self) -> Iterator[Label]:
        """Labels in the order of their batches, in which they are taken up."""
        return iter(self._labels.values())

    def find(self, batch: int) -> Label | None:
        """The label, between taken up and used."""
        return self._labels.get(batch)

    @property
    def first_missing(self) -> int | None:
        """The lowest batch that is wanted and not held."""
        return min(self._missing, default=None)

    @property
    def is_wanted_beyond(self) -> bool:
        """Whether a label is wanted that was not taken up."""
        return any(batch >= self.frontier for batch in self._missing)

    def want(self, batch: int) -> None:
        """The student asks for a label, once or several times.

        Raises:
            InvariantError: for one that it used already.
        """
        if self._is_gone(batch):
            raise InvariantError(f"label {batch} is wanted, which was used before")
        label = self._labels.get(batch)
        if label is None or not label.is_held:
            self._missing.add(batch)

    def take_up(self, label: Label) -> None:
        """Enter the label of the frontier."""
        if label.batch != self.frontier:
            raise InvariantError(f"label {label.batch} is taken up, expected {self.frontier}")
        self._labels[label.batch] = label
        self.frontier += 1

    def hold(self, label: Label) -> None:
        """A label is there."""
        label.is_held, label.limit_ns = True, None
        self.num_held += 1
        self._missing.discard(label.batch)

    def use(self, batch: int) -> None:
        """A label is gone.

        Raises:
            InvariantError: for one that is not held.
        """
        label = self._labels.get(batch)
        if label is None or not label.is_held:
            raise InvariantError(f"label {batch} was used, which was not delivered")
        del self._labels[batch]
        self.num_held -= 1
        self._gone.add(batch)
        while self._below in self._gone:
            self._gone.remove(self._below)
            self._below += 1

    def _is_gone(self, batch: int) -> bool:
        return batch < self._below or batch in self._gone
