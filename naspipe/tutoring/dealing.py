"""Which teacher gets which batch: the one that is expected to have it first.

A fast teacher takes 1 s and has two under way, a slow one takes 10 s and has none. The next batch
waits for the fast one, which has it in 3 s; the eighth from there on goes to the slow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from naspipe.tutoring.label_table import Label
from naspipe.tutoring.teacher_queue import TeacherQueue


class Deal:
    """One round: labels are placed in the order of their batches, on teachers as they are now.

    A label whose best teacher has no room is planned behind what that one has, and is not asked
    for yet. So later labels go where they do not come later than there.

    Args:
        queues: of teachers that may be asked, by name.
        requests: that a teacher may have under way.
        now_ns: the time.
    """

    def __init__(self, queues: Mapping[str, TeacherQueue], requests: int, now_ns: int) -> None:
        self._queues = [queues[name] for name in sorted(queues) if not queues[name].is_leaving]
        self._room = {each.name: requests - each.load for each in self._queues}
        self._pace = {each.name: each.likely_pace_ns(now_ns) for each in self._queues}
        self._free = {each.name: each.free_at_ns(now_ns) for each in self._queues}
        trusted = [each for each in self._queues if not each.is_doubtful]
        self._first = trusted or self._queues

    @property
    def has_room(self) -> bool:
        """Whether a teacher that comes first can be asked for one more."""
        return any(self._room[each.name] > 0 for each in self._first)

    def candidates(self, label: Label) -> Sequence[TeacherQueue]:
        """Who may be asked for a label; doubtful teachers only where there is no other."""
        for among in (self._first, self._queues):
            found = [each for each in among if _may_make(each, label)]
            if found:
                return found
        return ()

    def place(self, label: Label) -> list[TeacherQueue]:
        """The teachers to ask for a label now."""
        chosen: list[TeacherQueue] = []
        left = list(self.candidates(label))
        for _ in range(min(label.open, len(left))):
            best = min(left, key=lambda each: (self._finish(each), each.name))
            left.remove(best)
            self._free[best.name] = self._finish(best)
            if self._room[best.name] > 0:
                self._room[best.name] -= 1
                chosen.append(best)
        return chosen

    def _finish(self, queue: TeacherQueue) -> int:
        return self._free[queue.name] + self._pace[queue.name]


def _may_make(queue: TeacherQueue, label: Label) -> bool:
    return label.may_be_asked_of(queue.name) and label.batch not in queue.refused


def slowest_pace_ns(queues: Iterable[TeacherQueue]) -> int:
    """Time of one batch on the slowest teacher that is in time; 0 without any."""
    return max((each.pace_ns for each in queues if not each.is_doubtful), default=0)
