"""Sums of scores: what they are measured by, and what is no sum."""

from __future__ import annotations

import math
import statistics

import pytest

from naspipe.config.errors import ConfigError
from naspipe.search.scores import Scores, StandardScores, is_score, merit, told_merit

NAN = math.nan


def both(loss, naswot):
    return Scores(loss, NAN, NAN, naswot=naswot)


SAMPLE = [both(1.0, 10.0), both(2.0, 30.0), both(4.0, -math.inf), both(NAN, 20.0)]


def test_a_sum_counts_deviations_of_the_sample():
    standard = StandardScores.of_sample("loss+naswot", SAMPLE)
    losses, codes = [-1.0, -2.0, -4.0], [10.0, 30.0, 20.0]
    for loss, naswot in ((1.0, 30.0), (7.0, 11.5)):
        found = standard.added(both(loss, naswot))
        expected = (-loss - statistics.mean(losses)) / statistics.pstdev(losses)
        expected += (naswot - 20.0) / statistics.pstdev(codes)
        assert found.combined == pytest.approx(expected, rel=1e-14)
        assert found._replace(combined=NAN) == both(loss, naswot)
        assert merit(found, "loss+naswot") == found.of("loss+naswot") == found.combined
    assert standard.as_dict()["naswot"] == {"mean": 20.0, "deviation": statistics.pstdev(codes)}


def test_less_loss_and_more_of_all_else_is_better():
    standard = StandardScores.of_sample("naswot+loss", SAMPLE)
    best, worse, other = (standard.added(both(*each)) for each in ((1, 20), (2, 20), (1, 10)))
    assert best.combined > worse.combined and best.combined > other.combined
    assert standard.added(both(1.0, -math.inf)).combined == -math.inf
    assert math.isnan(standard.added(both(NAN, 1.0)).combined)


def test_a_part_that_ranks_nothing_is_refused():
    alike = [both(1.0, 5.0), both(2.0, 5.0), both(3.0, -math.inf)]
    with pytest.raises(
        ConfigError, match=r"naswot to differ among 3 .* found 5 for each; leave na"
    ):
        StandardScores.of_sample("loss+naswot", alike)
    with pytest.raises(ConfigError, match=r"expected naswot to differ .* found none"):
        StandardScores.of_sample("loss+naswot", [both(1.0, NAN), both(2.0, -math.inf)])


def test_sums_are_of_different_scores_without_bleu():
    for name in ("loss", "naswot", "loss+naswot", "synflow+naswot", "top1+loss+synflow"):
        assert is_score(name)
    for name in ("", "+", "loss+", "loss+loss", "loss+bleu", "loss+beauty", "combined", None, 3):
        assert not is_score(name)
    with pytest.raises(ConfigError, match="unknown score 'loss\\+': expected loss or top1"):
        merit(both(1.0, 1.0), "loss+")


def test_a_strategy_is_told_a_sum_only_where_its_parts_are_known():
    found = Scores(1.0, NAN, NAN, naswot=3.0, combined=NAN)
    with pytest.raises(ConfigError, match="score top1\\+naswot: expected outputs that score"):
        told_merit(found, "top1+naswot")
    assert told_merit(found._replace(combined=2.0), "loss+naswot") == 2.0
