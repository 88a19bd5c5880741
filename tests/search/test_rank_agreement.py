"""Kendall's tau, against its definition."""

from __future__ import annotations

import pytest

from naspipe.search.scores import interval, kendalls_tau


def test_tau():
    assert kendalls_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert kendalls_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert kendalls_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(2 / 3)
    assert kendalls_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / (2 * 3) ** 0.5)
    assert kendalls_tau([1, 1], [1, 2]) == 0.0


def test_the_interval_holds_tau_and_is_the_same_again():
    one, other = list(range(30)), [each + 7 * (each % 3) for each in range(30)]
    low, high = interval(one, other)
    assert low < kendalls_tau(one, other) < high <= 1.0
    assert (low, high) == interval(one, other)
