"""Scores, limits and costs of searches: plain rules."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.evaluation.evaluation import batch_sums
from naspipe.profiling.counts import SubnetCounter
from naspipe.search.scores import Scores, merit, scores_of
from naspipe.search.search_directory import Candidate, front, rank
from naspipe.search.strategies import Cost, Limits, parse_count
from tests.equivalence import spaces


def candidate(number, loss, params, choices=None):
    scores = Scores(loss, math.nan, math.nan)
    return Candidate(number, choices or (number,), scores, Cost(math.nan, params, math.nan))


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), max_size=12))
def test_no_subnet_beats_one_of_the_front_in_both(points):
    found = [candidate(n, loss, float(cost)) for n, (loss, cost) in enumerate(points)]
    best = front(found, "loss", "params")
    for one in best:
        for other in found:
            better = other.scores.loss < one.scores.loss and other.cost.params <= one.cost.params
            cheaper = other.scores.loss <= one.scores.loss and other.cost.params < one.cost.params
            assert not better and not cheaper
    if found:
        assert min(c.scores.loss for c in found) == min(c.scores.loss for c in best)


def test_ranks_take_each_subnet_once_and_leave_out_what_has_no_score():
    found = [candidate(0, 2.0, 1, (1,)), candidate(1, math.nan, 1), candidate(2, 2.0, 1, (1,)),
             candidate(3, 1.0, 1), candidate(4, 2.0, 1)]  # fmt: skip
    assert [each.sequence_id for each in rank(found, "loss")] == [3, 0, 4]


def test_scores_are_means_and_more_is_better():
    assert scores_of([6.0, 4.0, 4.0, 1.0, 3.0])[:3] == (1.5, 0.25, 0.75)
    assert math.isnan(scores_of([6.0, 4.0, 0.0, 0.0, 0.0]).top1)
    assert merit(Scores(2.0, 0.5, 0.6), "loss") == -2.0
    assert merit(Scores(2.0, 0.5, 0.6), "top5") == 0.6
    with pytest.raises(ConfigError, match="found only padding"):
        scores_of([0.0, 0.0, 0.0, 0.0, 0.0])


def test_padding_does_not_count_and_ties_go_to_the_first_class():
    loss = nn.CrossEntropyLoss(ignore_index=1)
    logits = torch.tensor([[0.0, 0.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    row = batch_sums(loss, (logits,), torch.tensor([0, 1, 2]))
    assert row[1:].tolist() == [2.0, 2.0, 1.0, 2.0]
    assert float(row[0]) == pytest.approx(2 * math.log(3))
    broken = torch.full((1, 7), math.nan)
    assert batch_sums(nn.CrossEntropyLoss(), (broken,), torch.tensor([0]))[3:].tolist() == [0, 0]
    assert batch_sums(nn.MSELoss(), (torch.ones(4, 2),), torch.zeros(4, 2)).tolist()[1:3] == [8, 0]


def test_numbers_as_users_write_them():
    assert [parse_count(text, "x") for text in ("25M", "1.5g", "40000", "60k")] == [
        25e6, 1.5e9, 40000, 60e3,
    ]  # fmt: skip
    for text in ("", "0", "-3", "many", "1e6"):
        with pytest.raises(ConfigError, match="x: expected a number such as"):
            parse_count(text, "x")


def test_a_cost_that_is_not_known_keeps_no_limit():
    assert Limits().allow(Cost(math.nan, math.nan, math.nan))
    assert not Limits(flops=10).allow(Cost(math.nan, 1, 1))
    assert Limits(flops=10, params=5).allow(Cost(10, 5, math.nan))


def test_operations_are_those_of_products():
    counter = SubnetCounter(spaces.mixed(blocks=2), spaces.vectors(0, 0))
    plain = counter.of((2, 2))
    assert plain.params == 16 * 24 + 24 + 24 * 10 + 10
    assert plain.flops == 2 * (16 * 24 + 24 * 10)
    assert counter.of((0, 2)).flops - plain.flops == 2 * 24 * 24


def test_layers_that_need_values_are_counted_by_parameters_only():
    class Looks(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    import naspipe

    space = naspipe.Space("looks", [naspipe.Block([Looks]), naspipe.Shared("head", nn.Identity)])
    counter = SubnetCounter(space, {"input": torch.ones(2, 3)})
    assert math.isnan(counter.of((0,)).flops) and counter.of((0,)).params == 0
    with pytest.raises(ConfigError, match="leave --max-flops out"):
        counter.check()
