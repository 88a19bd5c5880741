"""Who can make a teacher.

========================= ==========================================================================
:class:`MakesTeacher`      :class:`~naspipe.frontend.teaching.teachers.Teacher`,
                           :class:`~naspipe.frontend.teaching.momentum.Momentum`
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naspipe.frontend.teaching.taught import Taught
from naspipe.runtime.jobs.workload import Workload


class MakesTeacher(Protocol):
    """Puts a teacher beside the stream that it teaches."""

    def beside(self, students: Sequence[Workload]) -> Taught:
        """The only student and its teacher, as streams that train together.

        Raises:
            ConfigError: where there is none, or the teacher does not fit it.
        """
        ...
