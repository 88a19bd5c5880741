"""A scheduler that is told things in seconds, and says what it wants in short words."""

from __future__ import annotations

from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Command,
    Conflict,
    Deliver,
    Drop,
    Event,
    Hire,
    Refused,
    Release,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)
from naspipe.label_scheduler.scheduler import SECOND_NS, LabelScheduler, SchedulerSettings


def words(command: Command) -> str:
    """``ask a 3``, ``deliver 3 a``, ``drop a 3``, ``hire 1``, ``release a``, ``conflict 3 a b``."""
    match command:
        case Ask(teacher, batch):
            return f"ask {teacher} {batch}"
        case Deliver(batch, teacher):
            return f"deliver {batch} {teacher}"
        case Drop(teacher, batch):
            return f"drop {teacher} {batch}"
        case Hire(count):
            return f"hire {count}"
        case Release(teacher):
            return f"release {teacher}"
        case Conflict(batch, teachers, _):
            return f"conflict {batch} {' '.join(teachers)}"


class SchedulerInSeconds:
    """Every call but ``due`` tells one event at a time in seconds, and returns what is wanted."""

    def __init__(self, seed: int = 0, **settings: object) -> None:
        self.scheduler = LabelScheduler(
            SchedulerSettings(**{"upper": 8, "lower": 4, **settings}), seed
        )

    def tell(self, event: Event) -> list[str]:
        return [words(command) for command in self.scheduler.handle(event)]

    def joins(self, at: float, teacher: str, seconds: float = 1.0) -> list[str]:
        return self.tell(TeacherJoined(round(at * SECOND_NS), teacher, seconds))

    def leaves(self, at: float, teacher: str) -> list[str]:
        return self.tell(TeacherLeft(round(at * SECOND_NS), teacher))

    def wants(self, at: float, batch: int) -> list[str]:
        return self.tell(Wanted(round(at * SECOND_NS), batch))

    def answers(self, at: float, teacher: str, batch: int, digest: str = "same") -> list[str]:
        return self.tell(Answered(round(at * SECOND_NS), teacher, batch, digest))

    def refuses(self, at: float, teacher: str, batch: int) -> list[str]:
        return self.tell(Refused(round(at * SECOND_NS), teacher, batch))

    def uses(self, at: float, batch: int) -> list[str]:
        return self.tell(Used(round(at * SECOND_NS), batch))

    def ticks(self, at: float) -> list[str]:
        return self.tell(Tick(round(at * SECOND_NS)))

    @property
    def due(self) -> float | None:
        """When a tick is due, in seconds."""
        at = self.scheduler.deadline_ns
        return None if at is None else at / SECOND_NS
