"""When one more teacher is needed, and when one is not."""

from __future__ import annotations

from collections.abc import Collection

from naspipe.tutoring.settings import DeskSettings, nanoseconds
from naspipe.tutoring.teacher_queue import TeacherQueue

ROUNDS = 2
"""Batches of a new teacher until one sees what it changed: its first, and one of all others."""
MARGIN = 1.1
"""The others must be so much faster than the student before a teacher goes."""


class Staffing:
    """Hires when the student runs dry, and waits for the effect before it hires again.

    A teacher is not needed where the others alone are faster than the student was over a time in
    which it never ran dry.
    """

    def __init__(self, settings: DeskSettings) -> None:
        self._settings = settings
        self._load_ns = round(settings.load_seconds * 1e9)
        self._release_ns = round(settings.release_seconds * 1e9)
        self._hold_ns = 0
        """Until when the effect of the last one is waited for."""
        self._since_ns = 0
        self._used = 0
        """Labels, since then."""

    def joined(self, pace_ns: int, now_ns: int) -> None:
        """One more is there: what it changes is seen when it made some batches."""
        self._hold_ns = now_ns + ROUNDS * pace_ns
        self._restart(now_ns)

    def left(self, now_ns: int) -> None:
        """One is not there any longer, so nothing is to be waited for."""
        self._hold_ns = now_ns
        self._restart(now_ns)

    def used(self) -> None:
        """The student is through with one label."""
        self._used += 1

    def is_hiring(self, num_teachers: int, now_ns: int) -> bool:
        """Whether a student that runs dry gets one more now; counted as asked for if so."""
        self._restart(now_ns)
        if now_ns < self._hold_ns or num_teachers >= self._settings.most:
            return False
        self._hold_ns = now_ns + max(self._load_ns, nanoseconds(0))
        return True

    def deadline_ns(self, num_teachers: int, now_ns: int) -> int | None:
        """When a dry student may get one more."""
        is_full = num_teachers >= self._settings.most
        return None if is_full or self._hold_ns <= now_ns else self._hold_ns

    def spare(self, queues: Collection[TeacherQueue], now_ns: int) -> TeacherQueue | None:
        """The slowest teacher, if it was not needed for long; looked at anew each time."""
        seconds = (now_ns - self._since_ns) / 1e9
        is_long = self._release_ns and now_ns - self._since_ns >= self._release_ns
        if not is_long or self._used < self._settings.upper:
            return None
        rate = self._used / seconds
        self._restart(now_ns)
        staying = [each for each in queues if not each.is_leaving]
        if len(staying) < 2:
            return None
        slowest = max(staying, key=lambda each: (each.pace_ns, each.name))
        others = sum(
            1e9 / each.pace_ns for each in staying if each is not slowest and not each.is_doubtful
        )
        return slowest if others >= MARGIN * rate else None

    def _restart(self, now_ns: int) -> None:
        self._since_ns, self._used = now_ns, 0
