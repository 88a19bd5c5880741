"""Streams that train together, and whoever can make them of the user's only one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from naspipe.core.errors import ConfigError
from naspipe.core.wiring import Tap
from naspipe.runtime.jobs.losses import distilling, is_joined
from naspipe.runtime.jobs.workload import Workload

END = "joined"
"""The last block of a student with a joined loss. It changes nothing: there the outputs of the
block before it, of all passes, meet."""


@dataclass(frozen=True, slots=True)
class Taught:
    """Streams that train together, a student first, and what goes from one to the other."""

    workloads: tuple[Workload, ...]
    taps: tuple[Tap, ...] = ()
    places: tuple[str, ...] = ()
    """Of what is recorded of each, below the run directory."""


def only_student(students: Sequence[Workload]) -> Workload:
    """The one workload that a teacher teaches.

    Raises:
        ConfigError: for several students, or one whose loss takes no teacher, or whose steps
            have one already.
    """
    student, *others = students
    if others:
        raise ConfigError(f"teacher: expected one stream to teach, found {len(students)}")
    if not is_joined(student.loss):
        distilling(student.loss)
    if student.recipe.steps.distills:
        raise ConfigError(
            f"teacher: expected passes other than {student.recipe.passes}, whose first pass "
            f"is a teacher already"
        )
    return student
