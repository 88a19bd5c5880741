"""Scores: what does not apply is the same wherever it comes from."""

from __future__ import annotations

import math

from naspipe.search.scores import Scores


def test_what_does_not_apply_is_equal() -> None:
    one, other = Scores(0.5, 0.25, 1.0), Scores(0.5, 0.25, 1.0, float("nan"))
    assert one == other and (one != other) is False and hash(one) == hash(other)
    assert [one] == [other] and (3, one) == (3, other)


def test_what_differs_is_not() -> None:
    one = Scores(0.5, 0.25, 1.0)
    assert one != Scores(0.5, 0.25, 1.0, 12.0) and one != Scores(0.5, math.nan, 1.0)
    assert one != (0.5, 0.25, 1.0, math.nan)
