"""Which teachers serve which of several students, and which labels are in doubt.

Shares are even, and few teachers move. Example: of three students a, b, c and seven teachers 0 to
6, a has three teachers, b and c have two. With more students than teachers it is the other way
round: each student has one teacher, and a teacher has several students.

Labels are in doubt when a teacher turns out to be wrong. Example: a teacher passed its admission
check and made labels 0 to 9. Label 4 was audited, and another teacher agreed. Then label 10 is
audited, and the two do not agree. Labels 5 to 9 may be wrong, because nobody looked at them. Labels
0 to 4 are right: a teacher that is wrong stays wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Serving = Mapping[str, tuple[str, ...]]
"""The teachers of each student, in the order of their names."""


def balanced(
    students: Collection[str], teachers: Collection[str], before: Serving | None = None
) -> dict[str, tuple[str, ...]]:
    """Who serves whom: each student has floor(S / C) of S teachers, or one more.

    With fewer teachers than students, each teacher has floor(C / S) students, or one more. As many
    as possible stay where they were ``before``; those with the most keep the odd one, otherwise
    the first by name have it.
    """
    serving = dict[str, tuple[str, ...]]((student, ()) for student in sorted(students))
    if not students or not teachers:
        return serving
    old = before or {}
    if len(teachers) >= len(students):
        kept = {student: old.get(student, ()) for student in students}
        return {**serving, **_shares(teachers, kept)}
    turned: dict[str, list[str]] = {teacher: [] for teacher in teachers}
    for student in sorted(students):
        for teacher in sorted(set(old.get(student, ())) & set(teachers))[:1]:
            turned[teacher].append(student)
    for teacher, served in _shares(students, turned).items():
        for student in served:
            serving[student] = (teacher,)
    return serving


def _shares(
    given: Collection[str], before: Mapping[str, Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """``given`` among those that ``before`` names, who had some of them then."""
    taken = set[str]()
    have: dict[str, list[str]] = {}
    for owner in sorted(before):
        have[owner] = sorted((set(before[owner]) & set(given)) - taken)
        taken |= set(have[owner])
    least, odd = divmod(len(given), len(have))
    by_most = sorted(have, key=lambda owner: (-len(have[owner]), owner))
    quota = {owner: least + (place < odd) for place, owner in enumerate(by_most)}
    free = sorted(set(given) - taken)
    for owner in sorted(have):
        free += have[owner][quota[owner] :]
        del have[owner][quota[owner] :]
    free.sort(reverse=True)
    for owner in sorted(have):
        while len(have[owner]) < quota[owner]:
            have[owner].append(free.pop())
    return {owner: tuple(sorted(found)) for owner, found in sorted(have.items())}


_KEPT = 4096
"""Labels of a teacher that are known one by one; of older ones the lowest."""


@dataclass(slots=True)
class _Made:
    """What one teacher made and nobody has looked at, in the order in which it was made."""

    count: int = 0
    places: dict[int, int] = field(default_factory=dict)
    """Of answers that are not delivered, by batch: how many came before."""
    labels: deque[tuple[int, int]] = field(default_factory=deque)
    """Of those that are: how many came before, and the batch."""
    older: int | None = None
    """The lowest batch of those before ``labels``."""

    def agreed(self, place: int) -> None:
        """The answer with so many before it was right, so those before it are."""
        if not self.labels or place >= self.labels[0][0]:
            self.older = None
        self.labels = deque(each for each in self.labels if each[0] > place)

    def delivered(self, place: int, batch: int) -> None:
        self.labels.append((place, batch))
        if len(self.labels) > _KEPT:
            _, lowest = self.labels.popleft()
            self.older = lowest if self.older is None else min(self.older, lowest)

    @property
    def lowest(self) -> int | None:
        found = [batch for _, batch in self.labels]
        return min(found if self.older is None else [*found, self.older], default=None)


class Doubt:
    """The labels that each teacher made since another one agreed with it."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}

    def answered(self, batch: int, teacher: str) -> None:
        """A teacher has made a label."""
        made = self._made.setdefault(teacher, _Made())
        made.places[batch] = made.count
        made.count += 1

    def dropped(self, batch: int, teacher: str) -> None:
        """It was not needed."""
        if teacher in self._made:
            self._made[teacher].places.pop(batch, None)

    def delivered(self, batch: int, makers: Collection[str]) -> None:
        """A label was handed to the student.

        Args:
            batch: its number.
            makers: who made it; of several, all with the same bits.
        """
        for name in makers:
            made = self._made[name]
            place = made.places.pop(batch)
            if len(makers) > 1:
                made.agreed(place)
            else:
                made.delivered(place, batch)

    def since(self, teacher: str, otherwise: int) -> int:
        """The lowest batch of a teacher's labels that nobody has looked at."""
        made = self._made.get(teacher)
        return otherwise if made is None or made.lowest is None else made.lowest
