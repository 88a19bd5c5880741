"""Events that the label scheduler handles, and the commands that it returns, in order.

Times are nanoseconds of one monotonic clock, and never decrease. A label is a teacher's output for
one batch, so it is identified by the number of its batch. The name of a teacher is unique among the
teachers that are present at one time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """Request the label of a batch from a teacher; ``Answered`` or ``Refused`` follows."""

    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass the label that ``teacher`` computed to the student; returned once for each batch.

    The label of an audited batch was computed by two teachers, first by ``teacher``; both labels
    are equal.
    """

    batch: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Discard an answer: the label was already present, or this teacher was not asked for it."""

    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Hire:
    """Start ``count`` more teachers if possible; each is reported by ``TeacherJoined``."""

    count: int


@dataclass(frozen=True, slots=True)
class Release:
    """Release a teacher: it is not needed, has no open requests, and receives no more."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two teachers computed unequal labels of one batch; they are in the order of their answers.

    The label is not delivered unless it already was; the run ends.
    """

    batch: int
    teachers: tuple[str, str]
    digests: tuple[str | bytes, str | bytes]


Command = Ask | Deliver | Drop | Hire | Release | Conflict


@dataclass(frozen=True, slots=True)
class TeacherJoined:
    """A teacher is available from now on; one batch takes it ``seconds`` (more than 0).

    A known teacher of the same name is treated as having left before.
    """

    time_ns: int
    teacher: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TeacherLeft:
    """A teacher has left; its open requests are sent to others."""

    time_ns: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The student requests a label, possibly long before it needs it."""

    time_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A label arrived; ``digest`` is the digest of its bits."""

    time_ns: int
    teacher: str
    batch: int
    digest: str | bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A teacher will not compute this label."""

    time_ns: int
    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Used:
    """The student has used a label that was delivered, and will not ask for it again."""

    time_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at the ``deadline_ns`` of the scheduler, and harmless earlier."""

    time_ns: int


Event = TeacherJoined | TeacherLeft | Wanted | Answered | Refused | Used | Tick
