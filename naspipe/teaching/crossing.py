"""Which pass of a teacher teaches which pass of its student."""

from __future__ import annotations


def crossed(views: int, passes: int) -> tuple[tuple[int, int], ...] | None:
    """Pairs of passes, a teacher's and a student's: each view learns from the next one."""
    if views == 1:
        return None
    batches = passes // views
    return tuple(((number + batches) % passes, number) for number in range(passes))
