"""What so many teachers give a student: closed forms, without a queue or a deadline.

Rates are batches per second, of the student's size, of one student or one teacher that has its
device to itself. A student takes 228 / 32 batches in a second, a teacher makes 47.6 / 32: five
teachers are needed; four keep the student busy for 0.84 of the time.
"""

from __future__ import annotations

import math

from naspipe.config.errors import ConfigError

ROUNDING = 1e-9
"""Relative: so much more than a whole number of teachers is that number."""


def teachers_needed(student_rate: float, teacher_rate: float) -> int:
    """The fewest teachers, all alike, that never let the student wait: n = ceil(t_s / t_t).

    Raises:
        ConfigError: for a rate that is not above 0.
    """
    _check(student_rate, teacher_rate)
    return max(1, math.ceil(student_rate / teacher_rate * (1 - ROUNDING)))


def busy_share(teachers: int, student_rate: float, teacher_rate: float) -> float:
    """The student's rate over its rate without a teacher: min(1, n * t_t / t_s).

    Raises:
        ConfigError: for a rate that is not above 0.
    """
    _check(student_rate, teacher_rate)
    return min(1.0, teachers * teacher_rate / student_rate)


def online_rate(student_rate: float, forward_rate: float) -> float:
    """Batches per second where the student's device runs the teacher's forwards as well.

    Raises:
        ConfigError: for a rate that is not above 0.
    """
    _check(student_rate, forward_rate)
    return 1.0 / (1.0 / student_rate + 1.0 / forward_rate)


def _check(student_rate: float, teacher_rate: float) -> None:
    for name, rate in (("student", student_rate), ("teacher", teacher_rate)):
        if not 0 < rate < math.inf:
            raise ConfigError(f"{name}: expected a rate above 0, found {rate}")
