"""Which passes of a step a teacher teaches, by the views that the data show."""

from __future__ import annotations

from naspipe.config.errors import ConfigError
from naspipe.data.views import Views
from naspipe.runtime.jobs.workload import Workload
from naspipe.teaching.crossing import Pairs, with_local


def lesson_pairs(student: Workload, are_crossed: bool) -> Pairs | None:
    """A teacher's pass and the student's that learns from it; None where each is its own.

    Args:
        student: its data may be :class:`naspipe.Views`.
        are_crossed: whether each view learns from another one.

    Raises:
        ConfigError: when its steps have other passes than the data have views of batches.
    """
    data, passes = student.data, student.recipe.steps.passes
    if not isinstance(data, Views) or not (are_crossed or data.local):
        return None
    if data.passes != passes:
        local = f" and {data.local} local ones" if data.local else ""
        raise ConfigError(
            f"views: expected passes=accumulate:{data.passes}, for {data.views} views{local} of "
            f"{data.batches} micro-batches, found {student.recipe.passes}"
        )
    return with_local(data.views, data.batches, data.local, are_crossed)
