"""Priorities are longest paths of the dependency graph, written out here a second time."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import Subnet
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.engine.events import Priorities, Task, TaskKind
from naspipe.engine.invariants import violations
from naspipe.engine.orders import CriticalPathOrder
from naspipe.plan.bounds import (
    coarsened,
    critical_path_priorities,
)
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.virtual_costs import TableCosts
from scripts.paper.costs import RandomCosts
from scripts.rolling_priorities import ROUND, chain_lengths, rolling_priorities
from tests.plan.test_causal_order import run
from tests.strategies import pipelines, sees


def table(rules):
    return CostTable(
        {(b, c): LayerCost(3 + b + c, 7 + 2 * c, 1 + b % 2) for b in range(len(rules))
         for c in range(3)}
    )  # fmt: skip


def longest_paths(subnets, rules, costs, passes=1):
    """Every path of the graph, followed step by step."""
    last = len(rules) - 1

    def readers(y, block):
        users = [z.sequence_id for z in subnets if z.chain[block] == subnets[y].chain[block]]
        later = sorted({z // passes for z in users if sees(rules[block], y // passes, z // passes)})
        return [z for z in users if later[:1] == [z // passes]]

    @cache
    def level(kind, y, block):
        cost = costs.of(block, subnets[y].chain[block])
        if kind == "F":
            follower = level("F", y, block + 1) if block < last else level("B", y, last)
            return cost.forward_ns + follower
        if kind == "W":
            waiting = max((level("F", z, block) for z in readers(y, block)), default=0)
            return cost.write_ns + waiting
        before = level("B", y, block - 1) if block else 0
        return cost.backward_ns + max(before, level("W", y, block))

    return level


@settings(max_examples=100)
@given(pipelines(), st.integers(1, 4))
def test_priorities_are_longest_paths(pipeline, passes):
    rules, subnets, _ = pipeline
    subnets = subnets[: max(1, len(subnets) // passes) * passes]
    costs, steps = table(rules), Steps(passes, draws_each=True)
    level = longest_paths(subnets, rules, costs, passes)
    for y, priorities in enumerate(critical_path_priorities(subnets, rules, costs, steps)):
        for block in range(len(rules)):
            assert priorities.forward[block] == level("F", y, block)
            assert priorities.backward[block] == level("B", y, block)
            assert priorities.write[block] == level("W", y, block)


@settings(max_examples=100)
@given(pipelines(), st.integers(0, 2**32), st.integers(1, 9))
def test_the_order_changes_no_version(pipeline, seed, window):
    rules, subnets, partition = pipeline
    priorities = critical_path_priorities(subnets, rules, table(rules))
    accesses = run(rules, subnets, partition, RandomCosts(seed), window, True, priorities)
    assert list(violations(accesses, rules, subnets)) == []


def test_it_is_faster_where_subnets_conflict():
    """A stream of the kind that uniform sampling gives: conflicts between neighbours."""
    import random

    from naspipe.config.ids import SequenceId, StreamId, Subnet
    from naspipe.config.partition import Partition

    draw = random.Random(1)
    rules = [Exact()] * 24
    subnets = [
        Subnet(StreamId(0), SequenceId(y), tuple(draw.randrange(24) for _ in rules))
        for y in range(60)
    ]
    costs = CostTable({(b, c): LayerCost(1000, 2000, 0) for b in range(24) for c in range(24)})
    timing = TableCosts(table=costs, link_ns=0)
    makespans = []
    for priorities in (None, critical_path_priorities(subnets, rules, costs)):
        accesses = run(rules, subnets, Partition((0, 12, 24)), timing, 16, True, priorities)
        makespans.append(max(access.end_ns for access in accesses))
    assert makespans[1] < 0.97 * makespans[0]


@settings(max_examples=100)
@given(pipelines(max_subnets=20), st.integers(1, 24))
def test_a_rolling_view_ranks_each_round_as_a_stream_of_its_own(pipeline, known):
    """Within a round, priorities differ from those of the known subnets alone by a constant."""
    rules, subnets, _ = pipeline
    costs = table(rules)
    rolling = rolling_priorities(subnets, rules, costs, known)
    step = min(ROUND, known)
    for first in range(0, len(subnets), step):
        alone = critical_path_priorities(subnets[first : first + known], rules, costs)[:step]
        shifts = {
            found - own
            for mine, other in zip(rolling[first : first + step], alone, strict=True)
            for row, expected in zip(mine, other, strict=True)
            for found, own in zip(row, expected, strict=True)
        }
        assert len(shifts) == 1
    assert len(rolling) == len(subnets)


def test_rounds_are_comparable():
    """In a serial stream every step is critical: each starts as late as it may, in order."""
    rules = [Exact()] * 3
    subnets = [Subnet(0, y, (0, 0, 0)) for y in range(60)]
    costs = CostTable({(b, 0): LayerCost(10, 20, 5) for b in range(3)})
    rolling = rolling_priorities(subnets, rules, costs, 20)
    firsts = [priorities.forward[0] for priorities in rolling]
    assert firsts == [-95 * y for y in range(60)]


def test_a_stream_that_lags_goes_first():
    """The longer its chain is than that of all streams in the mean, the more it has left to do."""
    rules = [Exact()] * 3
    subnets = [Subnet(0, y, (0, 0, 0)) for y in range(200)]
    costs = CostTable({(b, 0): LayerCost(10, 20, 5) for b in range(3)})
    lengths = chain_lengths(subnets, rules, costs)
    alone = rolling_priorities(subnets, rules, costs, 20)
    assert rolling_priorities(subnets, rules, costs, 20, lengths) == alone
    gains = [
        one.forward[0] - other.forward[0]
        for one, other in zip(
            rolling_priorities(subnets, rules, costs, 20, [each / 2 for each in lengths]),
            alone, strict=True,
        )
    ]  # fmt: skip
    assert gains == sorted(gains) and 0 < gains[0] < gains[-1] < lengths[-1] / 2
    shorter = [each / 2 for each in lengths[:100]]
    assert rolling_priorities(subnets, rules, costs, 20, shorter)[:80] != alone[:80]


def test_near_priorities_are_left_to_the_papers_order():
    """In whole grains, rounded down, also below zero: a stage then takes the backward."""
    found = coarsened([Priorities((19, 10, 9), (0, -1, -11), (9, 30, -20))], 10)
    assert found == [Priorities((1, 1, 0), (0, -1, -2), (0, 3, -2))]
    order = CriticalPathOrder()
    forward = Task(0, 3, TaskKind.FORWARD, 0)
    backward = Task(0, 5, TaskKind.BACKWARD, 0)
    assert order.key(forward, 19) < order.key(backward, 10)
    assert order.key(backward, 1) < order.key(forward, 1)
