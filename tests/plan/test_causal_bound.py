"""The causal bound against every path of the dependency graph, and against real schedules."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import INITIAL, SequenceId, StreamId, Subnet
from naspipe.config.rules import Exact, Frozen, Lag, rule_of, rule_with_state
from naspipe.plan.bounds import causal_bound, side_by_side
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.virtual_costs import TableCosts
from naspipe.store import metrics
from scripts.rolling_priorities import chain_lengths
from tests.plan.test_causal_order import run
from tests.strategies import pipelines, sees, with_stateless_layers


def table(rules):
    return CostTable(
        {(b, c): LayerCost(3 + b + c, 7 + 2 * c, 1 + b % 2) for b in range(len(rules))
         for c in range(3)}
    )  # fmt: skip


def longest_path(subnets, rules, costs):
    """The longest path of the graph whose edges are written out from the rules' definition."""
    last = len(rules) - 1

    def cost(y, block):
        return costs.of(block, subnets[y].chain[block])

    def users_before(y, block):
        return [x for x in range(y) if subnets[x].chain[block] == subnets[y].chain[block]]

    def version_read(y, block):
        rule = rule_of(rules, subnets[y].layer(block))
        seen = (x for x in users_before(y, block) if sees(rule, x, y))
        return max(seen, default=INITIAL)

    @cache
    def end(kind, y, block):
        before = []
        if kind == "F":
            own = cost(y, block).forward_ns
            before += [("F", y, block - 1)] if block else []
            if (version := version_read(y, block)) != INITIAL:
                before.append(("W", version, block))
        elif kind == "B":
            own = cost(y, block).backward_ns
            before.append(("B", y, block + 1) if block < last else ("F", y, block))
        else:
            own = cost(y, block).write_ns
            before.append(("B", y, block))
            before += [("W", x, block) for x in users_before(y, block)[-1:]]
        return own + max((end(*step) for step in before), default=0)

    kinds = {
        (kind, y, b) for y, subnet in enumerate(subnets) for b in range(len(rules))
        for kind in ("FB" if rule_of(rules, subnet.layer(b)) == Frozen() else "FBW")
    }  # fmt: skip
    return max(end(*step) for step in kinds), {
        (kind, y, b): {"F": cost(y, b).forward_ns, "B": cost(y, b).backward_ns,
                       "W": cost(y, b).write_ns}[kind]
        for kind, y, b in kinds
    }  # fmt: skip


@settings(max_examples=200)
@given(st.one_of(pipelines(), with_stateless_layers(pipelines())))
def test_it_is_the_longest_path(pipeline):
    rules, subnets, _ = pipeline
    # Only shared layers lag, and every subnet uses those.
    costs = table(rules)
    bound = causal_bound(subnets, rules, costs)
    longest, steps = longest_path(subnets, rules, costs)
    assert bound.chain_ns == longest
    assert bound.work_ns == sum(steps.values())
    for stages in (1, 2, 5):
        expected = 1 - bound.work_ns / (stages * max(longest, bound.work_ns / stages))
        assert bound.bubble(stages) == pytest.approx(expected)


@settings(max_examples=60)
@given(st.one_of(pipelines(), with_stateless_layers(pipelines())), st.integers(1, 9))
def test_no_schedule_beats_it(pipeline, window):
    rules, subnets, partition = pipeline
    costs = table(rules)
    bound = causal_bound(subnets, rules, costs)
    accesses = run(rules, subnets, partition, TableCosts(table=costs, link_ns=0), window)
    makespan_ns = max(access.end_ns for access in accesses)
    assert makespan_ns >= bound.least_makespan_ns(partition.num_stages)
    found = metrics.causal_bound(accesses, partition.num_stages)
    assert found == pytest.approx(bound.bubble(partition.num_stages)), "from the log, the same"


@settings(max_examples=60)
@given(pipelines())
def test_chains_only_grow(pipeline):
    rules, subnets, _ = pipeline
    costs = table(rules)
    lengths = chain_lengths(subnets, rules, costs)
    assert lengths == sorted(lengths)
    assert lengths[-1] == causal_bound(subnets, rules, costs).chain_ns
    assert lengths[0] == causal_bound(subnets[:1], rules, costs).chain_ns


def stream_of(number, chains):
    return [Subnet(StreamId(number), SequenceId(y), chain) for y, chain in enumerate(chains)]


COSTS = CostTable({(b, c): LayerCost(10, 20, 0) for b in range(2) for c in range(9)})


def test_streams_share_nothing():
    """Each of two serial streams keeps one stage busy."""
    rules = [Exact(), Exact()]
    serial = [(0, 0)] * 20
    alone = causal_bound(stream_of(0, serial), rules, COSTS)
    both = side_by_side([alone, causal_bound(stream_of(1, serial), rules, COSTS)])
    assert alone.bubble(2) == pytest.approx(0.5)
    assert alone.parallelism == pytest.approx(1.0)
    assert both.bubble(2) == 0.0
    assert both.chain_ns == alone.chain_ns and both.work_ns == 2 * alone.work_ns


def test_a_split_backward_frees_an_exact_layer_at_the_front_sooner():
    """Its next READ waits for seven backwards of others, and no longer for their weights."""
    cost = LayerCost(10, 20, 0, inputs_ns=10, weights_ns=10)
    costs = CostTable({(block, c): cost for block in range(8) for c in range(9)})
    chains = [(0, *(number % 9 for _ in range(7))) for number in range(9)]
    whole, split = (
        causal_bound(stream_of(0, chains), [Exact()] * 8, each)
        for each in (costs, costs.split(costs.costs))
    )
    assert whole.steady_parallelism == pytest.approx(1.0)
    assert split.steady_parallelism == pytest.approx(24 / 17)
    assert whole.work_ns == split.work_ns


def test_one_step_behind_the_other():
    """Only block 1 conflicts: its READ to WRITE is 30 of 60, so two stages can be busy.

    The steady form does not count the first subnet's way in and the last one's way out.
    """
    rules = [Exact(), Exact()]
    bound = causal_bound(stream_of(0, [(y % 9, 0) for y in range(100)]), rules, COSTS)
    assert bound.chain_ns == 10 + 100 * 30 + 20
    assert bound.steady_parallelism == pytest.approx(2.0)
    assert bound.parallelism < 2.0
    assert bound.steady_bubble(4) == pytest.approx(0.5)


@pytest.mark.parametrize(("rule", "parallelism"), [(Exact(), 1.0), (Lag(3), 4.0)])
def test_a_shared_layer_in_front(rule, parallelism):
    """Exact makes the stream serial; lag(3) lets four subnets be under way."""
    subnets = stream_of(0, [(0, y % 9) for y in range(400)])
    bound = causal_bound(subnets, [rule, Exact()], COSTS)
    assert bound.steady_parallelism == pytest.approx(parallelism, rel=0.02)


def test_frozen_layers_wait_for_nothing():
    bound = causal_bound(stream_of(0, [(0, 0)] * 50), [Frozen(), Frozen()], COSTS)
    assert bound.chain_ns == 60
    assert bound.steady_bubble(64) == 0.0


@settings(max_examples=60)
@given(with_stateless_layers(pipelines()))
def test_to_know_of_layers_without_state_never_makes_a_chain_longer(pipeline):
    rules, subnets, _ = pipeline
    costs = table(rules)
    as_declared = causal_bound(subnets, list(map(rule_with_state, rules)), costs)
    assert causal_bound(subnets, rules, costs).chain_ns <= as_declared.chain_ns
