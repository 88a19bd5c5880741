"""bsp, asp and sequential in the simulator: versions, orders and what is under way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import INITIAL, AccessKind, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Frozen
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.invariants import violations
from naspipe.engine.policies import BulkPolicy
from naspipe.plan.virtual_driver import simulate
from naspipe.store.access_order import access_orders
from scripts.paper.costs import BlockCosts, RandomCosts
from tests.strategies import pipelines


def even_partition(blocks, stages):
    return Partition(tuple(range(0, blocks + 1, blocks // stages)))


def run(policy, rules, subnets, partition, costs, bulk=1, window=6):
    stages = partition.num_stages
    controllers = [
        build_controller(stage, [rules], policy=policy, bulk=bulk, starts_partly_clear=True)
        for stage in range(stages)
    ]
    found = simulate(
        lambda _, y: (subnets[y], partition, None), controllers, costs,
        lambda: [
            build_admission(policy, len(subnets), window=window, bulk=bulk, stages=stages)
        ],
    )  # fmt: skip
    return [access for accesses in found for access in accesses]


@settings(max_examples=300)
@given(
    pipelines(), st.integers(0, 2**32), st.integers(1, 6),
    st.sampled_from(["bsp", "asp", "sequential"]),
)  # fmt: skip
def test_every_policy_keeps_its_word(pipeline, seed, bulk, policy):
    rules, subnets, partition = pipeline
    accesses = run(policy, rules, subnets, partition, RandomCosts(seed), bulk)
    assert list(violations(accesses, rules, subnets, policy, bulk)) == []


@settings(max_examples=50)
@given(pipelines(), st.integers(0, 2**32))
def test_sequential_has_one_subnet_under_way(pipeline, seed):
    rules, subnets, partition = pipeline
    accesses = run("sequential", rules, subnets, partition, RandomCosts(seed))
    spans = {}
    for access in accesses:
        if access.kind is not AccessKind.WRITE:
            start, end = spans.get(access.sequence_id, (access.start_ns, access.end_ns))
            spans[access.sequence_id] = min(start, access.start_ns), max(end, access.end_ns)
    ordered = [spans[subnet.sequence_id] for subnet in subnets]
    assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_a_policy_that_reads_too_new_is_found(monkeypatch):
    """Without the bulk's own rule a reader sees what its bulk wrote."""
    monkeypatch.setattr(BulkPolicy, "version_to_read", lambda self, rule, users, reader: users[-1])
    rules, subnets = [Exact()] * 4, [Subnet(0, y, (0,) * 4) for y in range(8)]
    accesses = run("bsp", rules, subnets, even_partition(4, 2), RandomCosts(1), 4)
    assert any(
        "expected to read" in line for line in violations(accesses, rules, subnets, "bsp", 4)
    )


STREAM = [Subnet(0, y, (0,) * 8 if y in (2, 5, 7) else (y + 1,) * 8) for y in range(12)]
"""The three users of one layer in the paper's Table 4."""


def order_of_table_4(policy, stages):
    costs = BlockCosts(forward_ns={(b, c): 100 for b in range(8) for c in range(13)})
    accesses = run(policy, [Exact()] * 8, STREAM, even_partition(8, stages), costs, stages, 16)
    return access_orders(accesses)[STREAM[2].layer(0)]


@pytest.mark.parametrize(
    ("policy", "stages", "order"),
    [
        ("csp", 4, "2F-2B-5F-5B-7F-7B"),
        ("csp", 8, "2F-2B-5F-5B-7F-7B"),
        ("bsp", 8, "2F-5F-7F-2B-5B-7B"),
        ("asp", 8, "2F-5F-7F-2B-5B-7B"),
    ],
)
def test_table_4(policy, stages, order):
    """Access order of one layer that subnets 2, 5 and 7 use (NASPipe, Table 4)."""
    assert order_of_table_4(policy, stages) == order


@settings(max_examples=100)
@given(pipelines(), st.integers(0, 2**32), st.integers(1, 9))
def test_subnets_that_are_not_trained_have_a_forward_only(pipeline, seed, window):
    """Every block is computed once at the initial version, in order along the chain."""
    rules, subnets, partition = pipeline
    frozen = [Frozen()] * len(rules)
    controllers = [build_controller(stage, [frozen]) for stage in range(partition.num_stages)]
    stages = simulate(
        lambda _, y: (subnets[y], partition, None, False), controllers, RandomCosts(seed),
        lambda: [build_admission("csp", len(subnets), window=window)],
    )  # fmt: skip
    accesses = sorted((a for found in stages for a in found), key=lambda a: a.end_ns)
    assert {(a.kind, a.version) for a in accesses} == {(AccessKind.FORWARD, INITIAL)}
    for subnet in subnets:
        blocks = [a.layer.block for a in accesses if a.sequence_id == subnet.sequence_id]
        assert blocks == list(range(len(rules)))
