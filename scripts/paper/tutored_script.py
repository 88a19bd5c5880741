"""Students, teachers that come and go, and what became of them: the script of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naspipe.label_scheduler.label_table import Counts
from naspipe.label_scheduler.messages import Conflict
from naspipe.label_scheduler.scheduler import SchedulerSettings


class Joins(NamedTuple):
    """A teacher is there from a time on, and takes so long for a batch."""

    at_seconds: float
    teacher: str
    batch_seconds: float


class Leaves(NamedTuple):
    """A teacher ends at a time, whatever it has under way; it is missed ``ttl_seconds`` later."""

    at_seconds: float
    teacher: str
    ttl_seconds: float = 0.0


class Slows(NamedTuple):
    """From a time on, a teacher takes so long for each batch that it begins."""

    at_seconds: float
    teacher: str
    batch_seconds: float


class Spoils(NamedTuple):
    """From a time on, a teacher's labels have other bits than everybody else's."""

    at_seconds: float
    teacher: str


class Loses(NamedTuple):
    """At a time, a teacher forgets what it has under way, and goes on."""

    at_seconds: float
    teacher: str


Life = Joins | Leaves | Slows | Spoils | Loses


class Spare(NamedTuple):
    """A teacher that may be hired."""

    teacher: str
    batch_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TutoredScript:
    """Students that each take a label for every step, and what happens to their teachers."""

    step_seconds: float
    """Of a student that has its label."""
    steps: int
    lives: Sequence[Life]
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    """``last_batch`` follows from ``steps``."""
    students: Sequence[str] = ("student",)
    is_joined: bool = False
    """Whether students begin each step together, as data-parallel ones do."""
    window: int = 1
    """Labels that a student wants before it needs them, the next one included."""
    spares: Sequence[Spare] = ()
    """Hired in this order."""
    load_seconds: float = 0.0
    """From hired to joined."""
    jitter: float = 0.0
    """Batches and steps take up to so much more or less of their time, each by its key."""
    seed: int = 0
    limit_seconds: float = 1e6
    """The simulation ends there, whoever still waits."""


class Asked(NamedTuple):
    """One request."""

    at_seconds: float
    student: str
    teacher: str
    batch: int


@dataclass(slots=True, kw_only=True)
class TutoredOutcome:
    """What became of a script."""

    seconds: dict[str, float] = field(default_factory=dict)
    """When each student ended its last step; without those that did not."""
    used: dict[str, list[int]] = field(default_factory=dict)
    """The batches that each student used, in its order."""
    delivered: dict[str, list[int]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    hired: list[float] = field(default_factory=list)
    """Times at which one more was asked for."""
    released: list[tuple[float, str]] = field(default_factory=list)
    most_labels: int = 0
    """Asked for and held, of any one student."""
    most_held: int = 0
    counts: dict[str, Mapping[str, Counts]] = field(default_factory=dict)
    """By student, then by teacher."""
    audits_missed: int = 0
    conflict: Conflict | None = None
    """It ended the run."""

    def busy_share(self, script: TutoredScript) -> float:
        """The rate of the last student over that of one that never waits."""
        if len(self.seconds) < len(script.students):
            return 0.0
        return script.steps * script.step_seconds / max(self.seconds.values())

    @property
    def repeated(self) -> int:
        """Labels that were asked for more than once, audits left out."""
        return sum(each.repeated for some in self.counts.values() for each in some.values())
