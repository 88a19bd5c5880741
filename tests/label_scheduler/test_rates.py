"""The laws of rates, with the paper's figures."""

from __future__ import annotations

import pytest

from naspipe.api.teacher_plans import teachers_needed
from naspipe.config.errors import ConfigError
from scripts.paper.edl import busy_share, online_rate


def test_the_example() -> None:
    assert teachers_needed(228 / 32, 47.6 / 32) == 5
    shares = [round(busy_share(n, 228 / 32, 47.6 / 32), 2) for n in range(1, 7)]
    assert shares == [0.21, 0.42, 0.63, 0.84, 1.0, 1.0]


@pytest.mark.parametrize(
    ("student", "teacher", "needed"), [(4.0, 1.0, 4), (0.3, 0.1, 3), (4.001, 1.0, 5), (1.0, 9.0, 1)]
)
def test_so_many_are_needed(student, teacher, needed) -> None:
    assert teachers_needed(student, teacher) == needed
    assert busy_share(needed, student, teacher) == pytest.approx(1.0)
    assert needed == 1 or busy_share(needed - 1, student, teacher) < 1.0


def test_a_teacher_beside_the_student_takes_its_time() -> None:
    assert online_rate(2.0, 2.0) == 1.0
    assert online_rate(57.14, 237.0) == pytest.approx(46.04, abs=0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_are_above_zero(rate) -> None:
    for law in (teachers_needed, online_rate):
        with pytest.raises(ConfigError, match="student: expected a rate above 0"):
            law(rate, 1.0)
        with pytest.raises(ConfigError, match="teacher: expected a rate above 0"):
            law(1.0, rate)
