"""Scores: what does not apply is the same wherever it comes from."""

from __future__ import annotations

import math

import pytest

from naspipe.config.errors import ConfigError
from naspipe.search.scores import Scores, told_merit


def test_what_does_not_apply_is_equal() -> None:
    one, other = Scores(0.5, 0.25, 1.0), Scores(0.5, 0.25, 1.0, float("nan"))
    assert one == other and (one != other) is False and hash(one) == hash(other)
    assert [one] == [other] and (3, one) == (3, other)


def test_what_differs_is_not() -> None:
    one = Scores(0.5, 0.25, 1.0)
    assert one != Scores(0.5, 0.25, 1.0, 12.0) and one != Scores(0.5, math.nan, 1.0)
    assert one != (0.5, 0.25, 1.0, math.nan)


def test_a_score_that_no_subnet_has_ends_a_search() -> None:
    assert told_merit(Scores(2.0, 0.5, 1.0), "top1") == 0.5
    assert math.isnan(told_merit(Scores(math.nan, 0.5, 1.0), "loss")), "which has diverged"
    with pytest.raises(
        ConfigError, match=r"^score top1: .* put 'target' into the run's loss_fields"
    ):
        told_merit(Scores(2.0, math.nan, math.nan), "top1")
