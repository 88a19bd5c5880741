"""What a desk asks for, to be carried out in the order given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a teacher for the label of a batch; told back as ``Answered`` or ``Refused``."""

    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """The student may have this label, as ``teacher`` made it. Told once for each batch.

    For an audited batch two teachers made it, ``teacher`` first; what the other sent is alike.
    """

    batch: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what a teacher answered: the label was there already, or it was not asked for it."""

    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Hire:
    """So many more teachers are needed; told back as ``TeacherJoined`` where there are any."""

    count: int


@dataclass(frozen=True, slots=True)
class Release:
    """A teacher is not needed: it has nothing under way, and is asked nothing more."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two teachers made unequal labels of one batch, in the order of their answers.

    The label is not delivered if it is not yet; the run ends.
    """

    batch: int
    teachers: tuple[str, str]
    digests: tuple[str | bytes, str | bytes]


Command = Ask | Deliver | Drop | Hire | Release | Conflict
