"""The bound of stages: never above what a schedule takes, never below the causal one."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import ONE_PASS
from naspipe.engine.builder import build_admission, build_controller
from naspipe.plan.bounds import causal_bound
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.latest_start import CutStream
from naspipe.plan.virtual_costs import TableCosts
from naspipe.plan.virtual_driver import simulate
from scripts.paper import orders
from scripts.stage_bound import least_end, step_ends
from tests.plan.test_latest_start import cut_streams


def makespan(stream, steps, order, window):
    """Under the controllers of a real run, no time for messages."""
    buffered = None if stream.ordered is None else stream.ordered
    stages = range(stream.partitions[0].num_stages)
    controllers = [
        build_controller(
            stage, [stream.rules], order=order, starts_partly_clear=True, steps=steps,
            buffered=buffered,
        )
        for stage in stages
    ]  # fmt: skip
    found = simulate(
        lambda _, y: (stream.subnets[y], stream.partitions[y], None), controllers,
        TableCosts(table=stream.costs, link_ns=0),
        lambda: [
            build_admission("csp", len(stream.subnets), window=window, steps=steps)
        ],
    )  # fmt: skip
    return max(access.end_ns for accesses in found for access in accesses)


@settings(max_examples=150)
@given(cut_streams(), st.integers(1, 9), st.sampled_from(["paper", "gpipe"]), st.integers(0, 3))
def test_no_schedule_ends_sooner(pipeline, window, order, reach):
    orders.register()
    (stream, *_), steps = pipeline
    ends = step_ends(stream, steps, reach)
    assert ends == sorted(ends) and len(ends) == len(stream.subnets) // steps.passes
    assert ends[-1] <= makespan(stream, steps, order, window)
    causal = causal_bound(stream.subnets, stream.rules, stream.costs, steps)
    if all(rule == Exact() for rule in stream.rules):
        assert ends[-1] >= causal.chain_ns


def uninterrupted(items):
    """The best of all orders, each thing done at once."""
    best = None
    for order in permutations(items):
        now = end = 0
        for head, duration, behind in order:
            now = max(now, head) + duration
            end = max(end, now + behind)
        best = end if best is None else min(best, end)
    return best


ITEMS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=5
)


@given(ITEMS)
def test_one_stage_alone(items):
    found = least_end(items)
    assert found <= uninterrupted(items)
    for head in {item[0] for item in items}:
        for behind in {item[2] for item in items}:
            inner = [each for each in items if each[0] >= head and each[2] >= behind]
            if inner:
                assert found >= head + sum(each[1] for each in inner) + behind
    assert least_end([(0, 4, 0), (1, 1, 9)]) == 11, "interrupted"


def test_subnets_that_both_lead_to_a_third_share_their_stages():
    """The causal bound lets them run side by side: 90 each, then 90. Here stage 0 has 110 to do
    before the third subnet may go through block 1, and 10 of it cannot be filled."""
    costs = CostTable({(b, c): LayerCost(10, 20, 0) for b in range(3) for c in range(2)})
    chains = [(0, 0, 0), (1, 1, 1), (0, 1, 0)]
    subnets = [Subnet(0, y, chain) for y, chain in enumerate(chains)]
    stream = CutStream(
        subnets=subnets, partitions=[Partition((0, 2, 3))] * 3, rules=[Exact()] * 3, costs=costs
    )
    assert causal_bound(subnets, stream.rules, costs).chain_ns == 90 + 90
    assert step_ends(stream) == [90, 90, 110 + 10 + 80]
    assert makespan(stream, ONE_PASS, "paper", 8) >= 200
