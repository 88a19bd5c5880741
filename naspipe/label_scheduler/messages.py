"""Events that the label scheduler is told, and commands that it returns, in order.

Times are nanoseconds of one monotonic clock, and never fall. A label is a teacher's output for one
batch, so it is named by the number of its batch. A teacher is named by a text that no other teacher
has at the same time.
"""

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


@dataclass(frozen=True, slots=True)
class TeacherJoined:
    """A teacher may be asked from now on; ``seconds`` is what one batch takes it (more than 0).

    One that is known by this name already counts as having left before.
    """

    time_ns: int
    teacher: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TeacherLeft:
    """A teacher is not there any longer; what it was asked for is asked of others."""

    time_ns: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The student asks for a label; it may do so long before it needs it."""

    time_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A label came whose key is the right one; ``digest`` is that of its bits."""

    time_ns: int
    teacher: str
    batch: int
    digest: str | bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A teacher will not make this label."""

    time_ns: int
    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Used:
    """The student is through with a label that was delivered: nobody will ask for it again."""

    time_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on; due at the ``deadline_ns`` of the scheduler, harmless before."""

    time_ns: int


Event = TeacherJoined | TeacherLeft | Wanted | Answered | Refused | Used | Tick
