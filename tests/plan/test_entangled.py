"""Elastic layers in simulations: settings cost what they cost; what limits them is named."""

from __future__ import annotations

import pytest

from naspipe.config.blocks import Elastic
from naspipe.config.execution import Execution
from naspipe.config.ids import AccessKind
from naspipe.config.rules import Exact, Lag
from naspipe.config.space import Space
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.invariants import violations
from naspipe.plan.bottlenecks import bottlenecks
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable
from naspipe.plan.memory import DeviceSizes, plan_memory
from naspipe.plan.pipeline import Pipeline, plan_pipeline
from naspipe.plan.simulation import bound_of, measured_timing, outcome_of, simulate_run
from naspipe.streams.samplers import draw_subnets

BLOCKS, MS = 8, 10**6
WIDTHS = (1, 2, 4)
COSTS = CostTable(
    {(block, option): LayerCost(width * MS, 2 * width * MS, MS // 100, 0, 10 * width)
     for block in range(BLOCKS) for option, width in enumerate(WIDTHS)}
)  # fmt: skip


def space(rule=None, own=True):
    names = [f"w{block}" if own else "width" for block in range(BLOCKS)]
    return Space("e", [
        Elastic(f"fc{n}", list, {name: WIDTHS}, rule or Exact()) for n, name in enumerate(names)
    ])  # fmt: skip


def go(made, *, passes=1, steps=40, stages=4, **execution):
    kind = Steps(passes, draws_each=True) if passes > 1 else ONE_PASS
    drawn = draw_subnets("uniform", made, 1, steps * passes)
    subnets = tuple(made.subnet(0, y, made.chain(each)) for y, each in enumerate(drawn))
    pipeline = Pipeline(streams=(Stream(Chain.of(made, frozenset()), subnets, COSTS),), steps=kind)
    how = Execution(stages=stages, order="paper", **execution)
    plan = plan_pipeline(pipeline, how)
    run = simulate_run(pipeline, plan, how, measured_timing(pipeline, how, None))
    bound = bound_of(pipeline)
    outcome = outcome_of(run, pipeline, bound)
    return subnets, run, outcome, bottlenecks(pipeline, made.labels, bound, plan, outcome)


def test_each_access_costs_what_its_setting_does():
    subnets, run, _, _ = go(space(), stages=1)
    letters = {AccessKind.FORWARD: 1, AccessKind.BACKWARD: 2}
    for access in run.accesses:
        assert access.layer.candidate == 0
        if access.kind in letters:
            width = WIDTHS[subnets[access.sequence_id].chain[access.layer.block]]
            assert access.end_ns - access.start_ns == letters[access.kind] * width * MS
    assert list(violations(run.accesses, Chain.of(space()).rules, subnets)) == []


def test_activations_are_those_of_the_settings():
    subnets, _, outcome, _ = go(space(), stages=1)
    most = max(sum(10 * WIDTHS[option] for option in subnet.chain) for subnet in subnets)
    assert outcome.uses[0].activation_bytes == most


@pytest.mark.parametrize(("stages", "passes", "busy"), [(4, 1, 1.0), (4, 2, 1.6), (8, 8, 64 / 15)])
def test_entangled_and_exact_layers_are_filled_by_passes_alone(stages, passes, busy):
    """S P / (P + S - 1); with one width for all layers all passes are as long everywhere."""
    made = space(own=False)
    _, _, outcome, reasons = go(made, stages=stages, passes=passes)
    (said,) = (each for each in reasons if each.text.startswith("entangled: "))
    assert said.busy_stages == pytest.approx(busy)
    assert f"= {busy:.1f} stages with P = {passes}" in said.text
    found = stages * (1 - outcome.bubble_ratio)
    assert found <= busy + 0.05, "settings that differ cost some of it"


def test_layers_that_are_read_late_are_not_held_back_so():
    _, _, late, reasons = go(space(Lag(3)))
    assert not any("entangled" in each.text for each in reasons)
    assert late.bubble_ratio < go(space())[2].bubble_ratio - 0.3


def test_a_budget_counts_an_elastic_layer_once():
    made = space()
    sizes = DeviceSizes(
        SizeTable(tuple(range(BLOCKS)), {n: (LayerSize(1000, 100, False),) for n in range(BLOCKS)}),
        made.rules,
    )
    subnets, run, _, _ = go(made, stages=2)
    partitions = [each.partition for each in run.plan.streams[0].planned]
    whole = plan_memory("0.001x", subnets, partitions, sizes, [made.stays])
    assert whole.needs[0].largest_bytes == 1000 and not whole.permanent
    assert sum(need.host_bytes for need in whole.needs) >= 1000 * BLOCKS
    late = space(Lag(2))
    assert len(plan_memory("1x", subnets, partitions, sizes, [late.stays]).permanent) == BLOCKS
