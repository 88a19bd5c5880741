"""Blocks on any free stage: the list schedule breaks no rule, and stands still for a reason."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import AccessKind, Subnet
from naspipe.config.rules import Exact
from naspipe.plan.bounds import causal_bound
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.virtual_costs import TableCosts
from scripts.free_stages import FreeStages, accesses_of, set_levels
from tests.plan.test_critical_path import table
from tests.strategies import pipelines, sees


def made(subnets, rules, costs):
    chain = Chain(rules=tuple(rules), is_shared=(False,) * len(rules))
    subnets = accesses_of(Stream(chain, tuple(subnets), costs), TableCosts(table=costs))
    set_levels(subnets)
    return subnets


def ran(subnets, num_stages, window=64, **more):
    stages = FreeStages([subnets], num_stages, window, **more)
    outcome = stages.run()
    spans = {
        (a.kind, a.subnet, a.layer): (stage, begin, end) for stage, begin, end, a in stages._spans
    }
    return outcome, spans


def equal(blocks, candidates, **costs):
    cost = LayerCost(costs.get("forward", 10), costs.get("backward", 20), costs.get("write", 0))
    return CostTable({(b, c): cost for b in range(blocks) for c in range(candidates)})


@settings(max_examples=100)
@given(pipelines(), st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 3, 64]))
def test_no_access_runs_before_what_it_needs(pipeline, num_stages, window, looks_at):
    rules, subnets = pipeline[0], pipeline[1]
    _, spans = ran(made(subnets, rules, table(rules)), num_stages, window, looks_at=looks_at)
    last = len(rules) - 1
    forward, backward, write = AccessKind
    for subnet in subnets:
        y = subnet.sequence_id
        ends = [spans[forward, y, subnet.layer(b)][2] for b in range(last + 1)]
        ends += [spans[backward, y, subnet.layer(b)][2] for b in reversed(range(last + 1))]
        assert ends == sorted(ends)
        for block, rule in enumerate(rules):
            layer = subnet.layer(block)
            begin = spans[forward, y, layer][1]
            for other in subnets:
                x = other.sequence_id
                if other.layer(block) == layer and x < y and sees(rule, x, y):
                    assert spans[write, x, layer][2] <= begin
    on_stage = defaultdict(list)
    for stage, begin, end in spans.values():
        on_stage[stage].append((begin, end))
    assert set(on_stage) <= set(range(num_stages))
    for each in on_stage.values():
        each.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(each))
    under_way = [
        (min(s[1] for s in own), max(s[2] for s in own))
        for own in ([s for (_, n, _), s in spans.items() if n == y] for y in range(len(subnets)))
    ]
    for y, (begin, _) in enumerate(under_way):
        assert all(end <= begin for _, end in under_way[: max(0, y - window + 1)])


def test_one_subnet_after_another_keeps_one_stage_busy():
    subnets = [Subnet(0, y, (0, 0)) for y in range(40)]
    outcome, _ = ran(made(subnets, [Exact()] * 2, equal(2, 1)), 4)
    assert outcome.bubble == pytest.approx(0.75, abs=0.02)
    bound = causal_bound(subnets, [Exact()] * 2, equal(2, 1))
    assert bound.steady_bubble(4) == pytest.approx(0.75)


def test_without_conflicts_all_stages_are_busy():
    subnets = [Subnet(0, y, (y, y, y)) for y in range(60)]
    outcome, _ = ran(made(subnets, [Exact()] * 3, equal(3, 60)), 4)
    assert outcome.bubble < 0.05


def test_a_layer_that_moves_is_waited_for():
    subnets = [Subnet(0, y, (y % 3, y // 2 % 3, y % 2)) for y in range(40)]
    costs = equal(3, 3)
    usual, _ = ran(made(subnets, [Exact()] * 3, costs), 3)
    slow, _ = ran(made(subnets, [Exact()] * 3, costs), 3, copy_ns=lambda layer: 15)
    assert usual.moved > 0
    assert slow.bubble > usual.bubble


def test_what_is_at_hand_moves_less_and_waits_less():
    draws = random.Random(1)
    subnets = [Subnet(0, y, tuple(draws.randrange(16) for _ in range(4))) for y in range(120)]
    first, near = (
        ran(
            made(subnets, [Exact()] * 4, equal(4, 16)), 4, copy_ns=lambda layer: 10, looks_at=looks
        )[0]
        for looks in (1, 64)
    )
    assert near.moved < first.moved
    assert near.bubble < first.bubble


@pytest.mark.parametrize("is_made_first", [True, False])
def test_of_equals_the_one_that_was_offered_first_runs(is_made_first):
    """Wherever they lie in memory: figures are the same in every run."""
    both = [made([Subnet(0, 0, (0,))], [Exact()], equal(1, 1)) for _ in range(2)]
    one, other = both if is_made_first else both[::-1]
    stages = FreeStages([one, other], 1, 64)
    stages.run()
    assert any(stages._spans[0][3] is access for access in one[0])
