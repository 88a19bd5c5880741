"""A log imitated by the simulator: with its own costs, a simulated run comes out as it was."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.engine.builder import build_admission, build_controller
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.fidelity import compare_to_real, link_ns, logged_costs, pause_ns
from naspipe.plan.virtual_costs import TableCosts
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts
from tests.plan.test_causal_bound import table
from tests.plan.test_causal_order import run
from tests.strategies import moving_pipelines


class NoMessages(RandomCosts):
    """Random times of every access, and none between."""

    def message_ns(self, receiver):
        return 0

    def push_ns(self, layer, parcel):
        return 0


@settings(max_examples=60)
@given(moving_pipelines(), st.integers(0, 2**32))
def test_a_log_imitates_itself(pipeline, seed):
    rules, subnets, partitions = pipeline
    real = run(rules, subnets, partitions, NoMessages(seed, max_access_ns=100_000))
    costs = logged_costs(real)
    again = run(rules, subnets, partitions, costs)
    if costs.link_ns == costs.pause_ns == 0:
        assert again == real
        found = compare_to_real(real, again, partitions[0].num_stages)
        assert (found.order_agreement, found.start_deviation, found.bubble_error) == (1, 0, 0)
    else:
        durations = {(a.layer, a.sequence_id, a.kind): a.end_ns - a.start_ns for a in real}
        assert durations == {(a.layer, a.sequence_id, a.kind): a.end_ns - a.start_ns for a in again}


RULES = [Exact()] * 6
SUBNETS = [Subnet(0, y, tuple((y + b) % 3 for b in range(6))) for y in range(30)]
HALVES = Partition((0, 3, 6))


def test_links_and_pauses_are_found():
    timing = TableCosts(table=table(RULES), link_ns=40, pause_ns=7)
    accesses = run(RULES, SUBNETS, HALVES, timing)
    assert pause_ns(accesses) == 7
    assert link_ns(accesses) == 47, "the receiver's own pause is in it"
    costs = logged_costs(accesses)
    assert (costs.link_ns, costs.between_ns()) == (40, 7)
    assert run(RULES, SUBNETS, HALVES, costs) == accesses


def test_a_pause_is_the_mean_of_the_gaps_that_are_no_waits():
    """Handing on what a task leaves takes longer than the next block; a wait is neither."""
    access = Access(LayerId(0, 0, 0), 0, AccessKind.FORWARD, INITIAL, 0, 0, 0)
    log, now_ns = [], 0
    for gap_ns, number in ((10, 0), (10, 0), (10, 0), (150, 1), (10, 1), (9000, 2)):
        now_ns += gap_ns
        log.append(access._replace(sequence_id=number, start_ns=now_ns, end_ns=now_ns + 50))
        now_ns += 50
    assert pause_ns(log) == (10 + 10 + 150 + 10) // 4, "the first of six has none before it"


def test_pauses_are_idle_time():
    with_pauses = run(
        RULES, SUBNETS, HALVES, TableCosts(table=table(RULES), link_ns=0, pause_ns=500)
    )
    without = run(RULES, SUBNETS, HALVES, TableCosts(table=table(RULES), link_ns=0))
    assert {(a.layer, a.sequence_id, a.kind, a.end_ns - a.start_ns) for a in with_pauses} == {
        (a.layer, a.sequence_id, a.kind, a.end_ns - a.start_ns) for a in without
    }
    found = compare_to_real(without, with_pauses, 2)
    assert found.bubble_error > 0.1 and found.simulated_seconds > found.real_seconds


def test_another_schedule_is_told_apart():
    timing = TableCosts(table=table(RULES), link_ns=0)
    one = run(RULES, SUBNETS, HALVES, timing, window=6)
    other = run(RULES, SUBNETS, HALVES, timing, window=1)
    found = compare_to_real(one, other, 2)
    assert found.order_agreement < 1 and found.start_deviation > 0.05
    assert found.tasks == 2 * 2 * len(SUBNETS)
    assert compare_to_real(one, one, 2).order_agreement == 1


def test_a_layer_that_was_not_used_costs_what_its_block_does():
    accesses = run(RULES, SUBNETS, HALVES, TableCosts(table=table(RULES)))
    layer = SUBNETS[0].layer(2)._replace(candidate=77)
    assert logged_costs(accesses).access_ns(layer, AccessKind.FORWARD) == pytest.approx(6, abs=2)


def in_steps(costs, steps):
    """The stream above in steps, under the controllers of a real run."""
    controllers = [
        build_controller(stage, [RULES], starts_partly_clear=True, steps=steps, buffered=())
        for stage in range(2)
    ]
    stages = simulate(
        lambda _, y: (SUBNETS[y], HALVES, None), controllers, costs,
        lambda: [build_admission("csp", len(SUBNETS), window=6, steps=steps)],
    )  # fmt: skip
    return [access for accesses in stages for access in accesses]


def test_a_write_that_only_adds_takes_what_the_log_says():
    """The last pass of a step that uses a layer takes the optimizer's step."""
    steps = Steps(6)
    real = in_steps(NoMessages(3, max_access_ns=100_000), steps)
    took = {(a.layer, a.kind, a.sequence_id): a.end_ns - a.start_ns for a in real}
    logged = logged_costs(real, steps)
    again = in_steps(logged, steps)
    assert took == {(a.layer, a.kind, a.sequence_id): a.end_ns - a.start_ns for a in again}


def test_adding_is_cheaper_and_no_part_of_what_a_write_costs():
    layer, steps = LayerId(0, 0, 0), Steps(6)
    costs = CostTable({(b, c): LayerCost(1000, 2000, 500) for b in range(6) for c in range(3)})
    timing = TableCosts(table=costs, link_ns=0)
    assert 0 < timing.add_ns(layer, 0) < 0.2 * timing.access_ns(layer, AccessKind.WRITE)
    real = in_steps(timing, steps)
    writes = {a.end_ns - a.start_ns for a in real if a.kind is AccessKind.WRITE}
    assert writes == {timing.add_ns(layer, 0), 500}
    assert logged_costs(real, steps).table.of(0, 0).write_ns == 500
