"""Which pass of a teacher teaches which pass of its student."""

from __future__ import annotations

Pairs = tuple[tuple[int, int], ...]
"""A teacher's pass, and the student's that learns from it."""


def crossed(views: int, passes: int) -> Pairs | None:
    """Each view learns from the next one; None for one view, which learns from its own."""
    if views == 1:
        return None
    batches = passes // views
    return tuple(((number + batches) % passes, number) for number in range(passes))


def with_local(views: int, batches: int, local: int, are_crossed: bool) -> Pairs | None:
    """The same with views that the student alone sees, the first of them from the first view.

    Args:
        views: of each sample, which both see.
        batches: micro-batches of a step.
        local: views that the teacher does not see.
        are_crossed: whether the others learn from the next one, or from their own.
    """
    lessons = views * batches
    pairs = crossed(views, lessons) if are_crossed else None
    if not local:
        return pairs
    pairs = pairs or tuple((number, number) for number in range(lessons))
    more = range(lessons, lessons + local * batches)
    return (*pairs, *((number % lessons, number) for number in more))
