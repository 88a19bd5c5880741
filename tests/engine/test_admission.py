"""The admission window: in order, without gaps, never more than it may, the oldest always in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.engine.admission import AdmissionWindow


def test_by_hand() -> None:
    window = AdmissionWindow(3, 6)
    assert list(window.open()) == [0, 1, 2]
    assert list(window.open()) == []
    assert list(window.retire(1)) == [] and window.oldest == 0
    assert list(window.retire(0)) == [3, 4] and window.oldest == 2
    assert list(window.reach(5)) == [5], "a peer with an older view sent work for it"
    assert list(window.reach(5)) == list(window.reach(2)) == []
    assert list(window.retire(2)) == list(window.retire(3)) == []
    assert not window.is_finished
    assert [list(window.retire(y)) for y in (5, 4)] == [[], []]
    assert window.is_finished and window.oldest == 6


@given(st.integers(1, 8), st.integers(0, 25), st.integers(0, 1 << 32))
def test_whatever_the_order_of_retirement(size: int, total: int, seed: int) -> None:
    draw = random.Random(seed)
    window = AdmissionWindow(size, total)
    admitted = list(window.open())
    retired: set[int] = set()
    reached = -1
    while len(retired) < total:
        open_now = [y for y in admitted if y not in retired]
        assert window.oldest == open_now[0], "the oldest unfinished subnet is always admitted"
        assert not window.is_finished
        if draw.random() < 0.2:
            reached = max(reached, draw.randint(0, total + 3))
            admitted += window.reach(reached)
        else:
            y = draw.choice(open_now)
            retired.add(y)
            admitted += window.retire(y)
        assert admitted == list(range(len(admitted))), "in order and without gaps"
        oldest = min(set(range(total)) - retired, default=total)
        assert len(admitted) <= min(total, max(oldest + size, reached + 1))
        assert len(admitted) >= min(total, oldest + size), "nothing is held back without need"
    assert window.is_finished and admitted == list(range(total))


@pytest.mark.parametrize("size", [0, -3])
def test_a_window_holds_at_least_one(size: int) -> None:
    with pytest.raises(ConfigError) as caught:
        AdmissionWindow(size, 5)
    assert str(caught.value) == f"window: expected 1 or more subnets under way, found {size}"
