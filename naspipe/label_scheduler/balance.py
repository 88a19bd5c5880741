"""Two decisions for several students and teachers: who serves whom, and which labels are in doubt.

The shares are even, and few teachers are reassigned. Example: of three students a, b, c and seven
teachers 0 to 6, a has three teachers, b and c have two. If there are more students than teachers,
each student has one teacher, and a teacher has several students.

Labels are in doubt when a teacher turns out to be wrong. Example: a teacher passed its admission
check and computed labels 0 to 9. Label 4 was audited, and another teacher agreed. Then label 10 is
audited, and the two do not agree. Labels 5 to 9 may be wrong, because they were not compared.
Labels 0 to 4 are right, because a teacher that is wrong remains wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Serving = Mapping[str, tuple[str, ...]]
"""The teachers of each student, sorted by name."""


def balanced(
    students: Collection[str], teachers: Collection[str], before: Serving | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the teachers of each student: floor(S / C) of S teachers for C students, or one more.

    With fewer teachers than students, each teacher has floor(C / S) students, or one more. As many
    assignments of ``before`` as possible are kept; the extra one goes to those that had the most,
    with ties broken by name.
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
    """Divide ``given`` among the keys of ``before``, whose values are the previous shares."""
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
"""Labels of a teacher that are stored individually; of older ones only the lowest is stored."""


@dataclass(slots=True)
class _Unconfirmed:
    """Labels of one teacher that were not compared, in the order in which it computed them."""

    count: int = 0
    places: dict[int, int] = field(default_factory=dict)
    """For answers that are not delivered: the number of earlier answers, by batch."""
    labels: deque[tuple[int, int]] = field(default_factory=deque)
    """Delivered labels: the number of earlier answers, and the batch."""
    older: int | None = None
    """The lowest batch of those older than ``labels``."""


class Doubt:
    """The labels that each teacher has computed since another teacher last agreed with it."""

    def __init__(self) -> None:
        self._teachers: dict[str, _Unconfirmed] = {}

    def answered(self, batch: int, teacher: str) -> None:
        labels = self._teachers.setdefault(teacher, _Unconfirmed())
        labels.places[batch] = labels.count
        labels.count += 1

    def dropped(self, batch: int, teacher: str) -> None:
        if teacher in self._teachers:
            self._teachers[teacher].places.pop(batch, None)

    def delivered(self, batch: int, makers: Collection[str]) -> None:
        """Record that a label was delivered to the student; all ``makers`` agree on its bits."""
        for name in makers:
            found = self._teachers[name]
            place = found.places.pop(batch)
            if len(makers) > 1:  # so that its earlier answers are right, too
                if not found.labels or place >= found.labels[0][0]:
                    found.older = None
                found.labels = deque(each for each in found.labels if each[0] > place)
                continue
            found.labels.append((place, batch))
            if len(found.labels) > _KEPT:
                _, lowest = found.labels.popleft()
                found.older = lowest if found.older is None else min(found.older, lowest)

    def since(self, teacher: str, otherwise: int) -> int:
        """Return the lowest batch of a teacher's labels that were not compared."""
        found = self._teachers.get(teacher, _Unconfirmed())
        batches = [batch for _, batch in found.labels]
        return min(batches if found.older is None else [*batches, found.older], default=otherwise)
