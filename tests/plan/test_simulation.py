"""Whole runs: plans, orders, bounds, and the figures that commands print."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from naspipe.api.simulate import table5_scenario
from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import Subnet
from naspipe.config.rules import Exact, Lag
from naspipe.config.space import Space
from naspipe.engine.builder import ORDERS
from naspipe.engine.invariants import violations
from naspipe.engine.orders import CriticalPathOrder
from naspipe.plan.bottlenecks import bottlenecks
from naspipe.plan.bounds import causal_bound
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable
from naspipe.plan.memory import DeviceSizes
from naspipe.plan.pipeline import (
    Pipeline,
    as_planned,
    by_critical_path,
    by_latest_start,
    plan_pipeline,
)
from naspipe.plan.simulation import (
    backward_bounds,
    bound_of,
    chosen_plan,
    measured_timing,
    outcome_of,
    simulate_run,
)
from naspipe.streams.samplers import draw_stream
from scripts.rolling_priorities import by_next_subnets

BLOCKS, CANDIDATES = 12, 8
CHAIN = Chain(rules=(Exact(),) * BLOCKS, is_shared=(False,) * BLOCKS)
LABELS = tuple(map(str, range(BLOCKS)))
COSTS = CostTable(
    {(b, c): LayerCost(10**8 + 10**7 * c, 3 * 10**8 + 10**7 * c, 0, 0, 10) for b in range(BLOCKS)
     for c in range(CANDIDATES)}
)  # fmt: skip
SIZES = DeviceSizes(
    SizeTable((0,) * BLOCKS, {0: tuple(LayerSize(10**8, 10**8, False) for _ in range(CANDIDATES))}),
    CHAIN.rules,
)


def stream(sampler, steps=60, counts=(CANDIDATES,) * BLOCKS):
    return [Subnet(0, y, c) for y, c in enumerate(draw_stream(sampler, counts, 1, steps))]


def go(sampler="uniform", chain=CHAIN, subnets=None, **execution):
    how = Execution(**{"stages": 4, "order": "paper", **execution})
    pipeline = Pipeline(streams=(Stream(chain, tuple(subnets or stream(sampler)), COSTS),))
    plan = plan_pipeline(pipeline, how, SIZES)
    run = simulate_run(pipeline, plan, how, measured_timing(pipeline, how, plan.memory))
    bound = bound_of(pipeline)
    outcome = outcome_of(run, pipeline, bound)
    return run, outcome, bottlenecks(pipeline, LABELS, bound, plan, outcome)


def test_a_run_keeps_causal_order_and_the_bound():
    run, outcome, _ = go()
    assert list(violations(run.accesses, CHAIN.rules, stream("uniform"))) == []
    least_ns = causal_bound(stream("uniform"), CHAIN.rules, COSTS).least_makespan_ns(4)
    assert run.makespan_ns >= least_ns
    assert 0 < outcome.bound < outcome.bubble_ratio < 1
    assert outcome.distance == outcome.bubble_ratio - outcome.bound
    busy = sum(use.busy for use in outcome.uses) / 4
    work_ns = sum(a.end_ns - a.start_ns for a in run.accesses)
    assert busy == pytest.approx(work_ns / (4 * run.makespan_ns))


def test_streams_fill_one_anothers_bubbles():
    how = Execution(stages=4, order="paper")
    pipelines = [
        Pipeline(streams=tuple(
            Stream(CHAIN, tuple(s._replace(stream=n) for s in stream("uniform")), COSTS)
            for n in range(count)
        ))
        for count in (1, 2)
    ]  # fmt: skip
    found = []
    for pipeline in pipelines:
        plan = plan_pipeline(pipeline, how)
        run = simulate_run(pipeline, plan, how, measured_timing(pipeline, how, None))
        found.append(outcome_of(run, pipeline, bound_of(pipeline)))
    assert found[1].bubble_ratio < found[0].bubble_ratio - 0.1
    assert found[1].bound < found[0].bound


def test_streams_under_the_critical_path_order_finish_what_they_began(monkeypatch):
    """Fewer bubbles than with a new choice at every block, and each stream in causal order."""
    how = Execution(stages=4)
    subnets = [[s._replace(stream=n) for s in stream("uniform")] for n in range(3)]
    pipeline = Pipeline(streams=tuple(Stream(CHAIN, tuple(each), COSTS) for each in subnets))
    plan = by_critical_path(plan_pipeline(pipeline, how), pipeline)
    timing = measured_timing(pipeline, how, None)
    run = simulate_run(pipeline, plan, how, timing)
    for number, each in enumerate(subnets):
        mine = [access for access in run.accesses if access.layer.stream == number]
        assert list(violations(mine, CHAIN.rules, each)) == []
    monkeypatch.setitem(ORDERS, "critical-path", lambda streams: CriticalPathOrder())
    assert run.makespan_ns < 0.97 * simulate_run(pipeline, plan, how, timing).makespan_ns


def test_activations_are_held_from_forward_to_backward():
    """One stage runs one subnet at a time: all of its blocks' 10 bytes at once."""
    _, outcome, _ = go(stages=1)
    assert outcome.uses[0].activation_bytes == 10 * BLOCKS
    _, outcome, _ = go("spaced:7", window=2)
    assert max(use.activation_bytes for use in outcome.uses) <= 2 * 10 * BLOCKS


@pytest.mark.parametrize("sampler", ["uniform", "spaced:7"])
def test_auto_takes_the_fastest_order(sampler):
    """The critical path suits uniform sampling, the paper's order spaced; latest starts both, to a
    millisecond: they choose anew at every block, so a run's WRITEs never wait for its end."""
    how = Execution(stages=3, order="auto", partition="balanced", window=32)
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream(sampler, 100)), COSTS),))
    plan = plan_pipeline(pipeline, how)
    timing = measured_timing(pipeline, how, None)

    def makespan(of):
        return simulate_run(pipeline, of, how, timing).makespan_ns

    paper, critical, latest = map(
        makespan, (plan, by_critical_path(plan, pipeline), by_latest_start(plan, pipeline))
    )
    assert (critical < paper) == (sampler == "uniform")
    assert latest < min(paper, critical) + 10**6
    assert (latest < paper) == (sampler == "uniform")
    best = by_latest_start(plan, pipeline) if latest < paper else plan
    assert chosen_plan(pipeline, how, None, lambda _, memory: timing) == best


@pytest.mark.parametrize(("dearer", "is_split"), [(1.0, True), (1.1, True), (2.0, False)])
def test_auto_splits_backwards_where_that_is_faster(dearer, is_split):
    half = {"inputs_ns": int(dearer * 10**8), "weights_ns": int(dearer * 10**8)}
    costs = CostTable({place: LayerCost(10**8, 2 * 10**8, 0, **half) for place in COSTS.costs})
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform", 60)), costs),))

    def timing(one, memory):
        return measured_timing(one, how, memory)

    found = {}
    for backward in ("whole", "auto", "split"):
        how = Execution(stages=4, order="latest-start", partition="balanced", backward=backward)
        plan = chosen_plan(pipeline, how, None, timing)
        planned = as_planned(pipeline, plan)
        run = simulate_run(pipeline, plan, how, measured_timing(planned, how, None))
        assert list(violations(run.accesses, CHAIN.rules, stream("uniform", 60))) == []
        assert run.makespan_ns >= bound_of(planned).least_makespan_ns(4)
        found[backward] = run.makespan_ns
    assert found["auto"] == found["split" if is_split else "whole"]
    assert (found["split"] < found["whole"]) == is_split


@pytest.mark.parametrize(
    ("steps", "kinds", "is_split"),
    [(10, (), False), (10, (0,) * BLOCKS, True), (60, (), True)],
)
def test_auto_counts_the_proofs_of_split_backwards(steps, kinds, is_split):
    """The first backward of each candidate runs both ways, which ten steps do not make up for.

    Blocks of one kind share that proof.
    """
    cost = LayerCost(10**8, 2 * 10**8, 0, 0, 10, 10**8, 10**8)
    costs = CostTable(dict.fromkeys(COSTS.costs, cost))
    chain = replace(CHAIN, kinds=kinds)
    pipeline = Pipeline(streams=(Stream(chain, tuple(stream("uniform", steps)), costs),))
    how = Execution(stages=4, order="latest-start", partition="balanced", backward="auto")
    plan = chosen_plan(pipeline, how, None, lambda one, memory: measured_timing(one, how, memory))
    assert ((0, 0) in plan.streams[0].split) == is_split


def test_the_bounds_of_both_kinds_of_backward():
    cost = LayerCost(10**8, 2 * 10**8, 0, inputs_ns=10**8, weights_ns=10**8)
    known = CostTable(dict.fromkeys(COSTS.costs, cost))
    subnets = tuple(stream("uniform"))
    pipeline = Pipeline(streams=(Stream(CHAIN, subnets, known),))
    found = backward_bounds(pipeline)
    assert found is not None and found.whole == bound_of(pipeline)
    assert found.split == causal_bound(subnets, CHAIN.rules, known.split(known.costs))
    assert found.split.work_ns == found.whole.work_ns
    assert found.split.bubble(4) < found.whole.bubble(4)
    assert backward_bounds(replace(pipeline, policy="asp")) is None
    assert backward_bounds(Pipeline(streams=(Stream(CHAIN, subnets, COSTS),))) is None


@pytest.mark.parametrize("backward", ["auto", "split"])
def test_auto_keeps_backwards_whole_with_a_memory_budget(backward):
    cost = LayerCost(10**8, 2 * 10**8, 0, 0, 10, 10**8, 10**8)
    costs = CostTable(dict.fromkeys(COSTS.costs, cost))
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform")), costs),))
    how = Execution(stages=2, backward=backward, memory_budget="4x")
    plan = chosen_plan(pipeline, how, SIZES, lambda one, memory: measured_timing(one, how, memory))
    assert ((0, 0) in plan.streams[0].split) == (backward == "split")


def test_auto_leaves_the_paper_s_order_where_no_other_is_faster():
    how = Execution(stages=2, order="auto")
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform", 1)), COSTS),))
    plan = plan_pipeline(pipeline, how)

    def timing(one, memory):
        return measured_timing(one, how, memory)

    assert chosen_plan(pipeline, how, None, timing) == plan


def test_latest_starts_of_streams_side_by_side():
    """One order for one stream and several: what one leaves empty the others fill."""
    streams = tuple(
        Stream(CHAIN, tuple(each._replace(stream=number) for each in stream("uniform")), COSTS)
        for number in range(2)
    )
    pipeline, how = Pipeline(streams=streams), Execution(stages=4, window=16)
    plan = plan_pipeline(pipeline, how)
    timing = measured_timing(pipeline, how, None)
    spans = [
        simulate_run(pipeline, each, how, timing).makespan_ns
        for each in (by_latest_start(plan, pipeline), by_critical_path(plan, pipeline), plan)
    ]
    assert spans[0] < 0.97 * min(spans[1:])


def test_two_stages_with_split_backwards_are_near_the_bound():
    scenario = table5_scenario("nlp.c3", with_shared=False, recompute=False)
    how = Execution(stages=2, backward="split", order="latest-start", partition="balanced")
    pipeline = scenario.pipeline("uniform", seed=0, steps=100)
    least_ns = bound_of(pipeline.splitting(math.inf)).least_makespan_ns(2)
    assert scenario.run(pipeline, how).makespan_ns < 1.02 * least_ns


@pytest.mark.parametrize("order", [by_latest_start, by_critical_path])
def test_writes_that_nobody_waits_for_fill_idle_time(order, monkeypatch):
    """A tenth of the work; under uniform sampling two stages are idle for longer than that."""
    how = Execution(stages=2, window=16)
    places = [(block, candidate) for block in range(BLOCKS) for candidate in range(CANDIDATES)]
    costs = CostTable(dict.fromkeys(places, LayerCost(10**8, 3 * 10**8, 5 * 10**7)))
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform", 200)), costs),))
    plan, timing = plan_pipeline(pipeline, how), measured_timing(pipeline, how, None)
    deferred = simulate_run(pipeline, order(plan, pipeline), how, timing).makespan_ns
    monkeypatch.setattr("naspipe.plan.pipeline._defers_writes", lambda *_: False)
    at_once = order(plan, pipeline)
    assert not any(each.priorities.write for each in at_once.streams[0].planned)
    assert deferred < 0.97 * simulate_run(pipeline, at_once, how, timing).makespan_ns


def test_with_a_budget_writes_come_at_once():
    how = Execution(stages=2, window=16, memory_budget="3x")
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform", 20)), COSTS),))
    plan = plan_pipeline(pipeline, how, SIZES)
    for order in (by_latest_start, by_critical_path):
        ranked = order(plan, pipeline)
        assert not any(each.priorities.write for each in ranked.streams[0].planned)


def test_knowing_the_next_subnets_is_nearly_as_good_as_knowing_all():
    how = Execution(stages=3, window=32)
    pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform", 200)), COSTS),))
    plan = plan_pipeline(pipeline, how)
    timing = measured_timing(pipeline, how, None)

    def makespan(known):
        ranked = (
            by_next_subnets(plan, pipeline, known) if known else by_critical_path(plan, pipeline)
        )
        return simulate_run(pipeline, ranked, how, timing).makespan_ns

    everything, paper = makespan(None), simulate_run(pipeline, plan, how, timing).makespan_ns
    assert makespan(64) < everything + 0.5 * (paper - everything)
    assert makespan(10_000) == pytest.approx(everything, rel=0.01), "grains begin elsewhere"


def test_policies_without_causal_order_keep_their_systems_ways():
    pipeline = Pipeline(
        streams=(Stream(CHAIN, tuple(stream("uniform")), COSTS),), policy="bsp", bulk=4
    )
    plan = plan_pipeline(pipeline, Execution(stages=4, order="critical-path"))
    assert plan.order == "paper" and len(set(plan.streams[0].partitions)) == 1
    asp = replace(pipeline, policy="asp")
    with pytest.raises(ConfigError, match="found asp"):
        plan_pipeline(asp, Execution(stages=4, memory_budget="3x"), SIZES)


def test_a_budget_is_kept_and_copies_take_time():
    _, without, _ = go()
    run, within, _ = go(memory_budget="1.5x", bandwidth=1e9, latency=0.0)
    assert without.hit_rate == 1.0 and within.hit_rate < 1.0
    assert within.stall_ratio > 0 and within.makespan_seconds > without.makespan_seconds
    for use, budget in zip(within.uses, run.plan.memory.budgets, strict=True):
        assert 0 < use.layer_bytes <= budget


def test_a_budget_without_sizes_is_refused():
    with pytest.raises(ConfigError, match="expected layers of known sizes"):
        pipeline = Pipeline(streams=(Stream(CHAIN, tuple(stream("uniform")), COSTS),))
        plan_pipeline(pipeline, Execution(stages=2, memory_budget="3x"))


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(ConfigError, match="13 stages for 12 blocks"):
        go(stages=13)


def words(found):
    return [limit.text.partition(":")[0] for limit in found]


def test_reasons_are_said():
    _, _, found = go("uniform", stages=8)
    assert words(found)[0] == "causal order"
    _, _, found = go("spaced:7", stages=8)
    assert words(found)[0] == "imbalance", "12 blocks on 8 stages"
    _, _, found = go("spaced:7", stages=4, window=2)
    assert words(found)[0] == "window"
    _, _, found = go("spaced:7", memory_budget="1x", bandwidth=2e8)
    assert "memory" in words(found)
    assert go("spaced:7", stages=1)[2] == []


@pytest.mark.parametrize(
    ("block", "rule", "expected"),
    [(0, Exact(), "exact layer 0"), (11, Exact(), None), (0, Lag(1), "lag(1) of 0")],
)
def test_shared_layers_are_named(block, rule, expected):
    rules = [Exact()] * BLOCKS
    rules[block] = rule
    shared = tuple(b == block for b in range(BLOCKS))
    counts = [CANDIDATES] * BLOCKS
    counts[block] = 1
    chain = Chain(rules=tuple(rules), is_shared=shared)
    subnets = stream("spaced:7", counts=tuple(counts))
    _, outcome, found = go(chain=chain, subnets=subnets, stages=4)
    assert (expected in words(found)) == (expected is not None)
    if expected:
        strictest = min(limit.busy_stages for limit in found)
        busy = sum(use.busy for use in outcome.uses)
        assert busy <= strictest * 1.1, "what is said to be the most is"


def test_layers_without_state_leave_no_bubble():
    """What a chain of identities is held back by is the balance of the stages alone."""
    known = frozenset((block, candidate) for block in range(BLOCKS) for candidate in range(8))
    space = Space("none", [Block([int] * CANDIDATES) for _ in range(BLOCKS)])
    subnets = stream("uniform", 200)
    before, after = (
        go(chain=Chain.of(space, stateless=each), subnets=subnets)[1]
        for each in (frozenset(), known)
    )
    assert before.bound > 0.4 and before.bubble_ratio > 0.5
    assert after.bound == 0.0 and after.bubble_ratio < 0.1
    half = frozenset(place for place in known if place[1] % 2)
    some = go(chain=Chain.of(space, stateless=half), subnets=subnets)[1]
    assert after.bubble_ratio < some.bubble_ratio < before.bubble_ratio
