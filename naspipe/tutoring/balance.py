"""Which teachers serve which of several students: even shares, and few moves.

Three students a, b, c and seven teachers 0 to 6: a has three, b and c have two. With more students
than teachers it is the other way round: each student has one teacher, and a teacher has several.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
