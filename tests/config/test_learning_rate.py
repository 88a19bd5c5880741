"""Learning rates, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.recipe import SCHEDULES, Recipe, learning_rate

WARM = (2.0, 4.0, 6.0, 8.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", (8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0)),
        ("linear", (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0)),
        ("cosine", (8.0, None, 4 + 2 * math.sqrt(2), None, 4.0, None, 4 - 2 * math.sqrt(2), None)),
        ("inverse_sqrt", (8.0, *(8 * math.sqrt(4 / n) for n in (5, 6, 7, 8, 9, 10, 11)))),
    ],
)
def test_rates_of_twelve_steps(schedule: str, expected: tuple[float | None, ...]) -> None:
    recipe = Recipe(lr=8.0, schedule=schedule, warmup_steps=4)
    rates = [learning_rate(recipe, y, 12) for y in range(12)]
    assert rates[:4] == list(WARM)
    for rate, value in zip(rates[4:], expected, strict=True):
        assert value is None or rate == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warm_up_the_first_rate_is_the_peak(schedule: str) -> None:
    assert learning_rate(Recipe(lr=0.1, schedule=schedule), 0, 5) == 0.1


def test_inverse_sqrt_without_warm_up() -> None:
    recipe = Recipe(lr=1.0, schedule="inverse_sqrt")
    assert [learning_rate(recipe, y, 9) for y in (0, 3, 8)] == [1.0, 0.5, 1 / 3]


@given(
    st.sampled_from(SCHEDULES), st.integers(0, 30), st.integers(1, 30), st.floats(0, 10, width=32)
)
def test_rates_rise_then_never_rise_again(
    schedule: str, warmup: int, steps: int, peak: float
) -> None:
    recipe = Recipe(lr=peak, schedule=schedule, warmup_steps=warmup)
    rates = [learning_rate(recipe, y, steps) for y in range(steps)]
    assert all(0 <= rate <= peak for rate in rates)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
