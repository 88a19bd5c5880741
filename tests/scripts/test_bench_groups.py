"""The bench of groups: the bound of 8 stages lies between the causal bound and what is reached."""

from __future__ import annotations

import pytest

from naspipe.config.definition import Execution
from naspipe.plan.bounds import causal_bound
from naspipe.plan.simulation import simulate_run
from scripts import bench_groups
from scripts.bench_groups import DEVICES, GroupCosts, scenario_of, stage_bound


@pytest.mark.long
def test_stages_leave_a_bubble_where_the_causal_bound_leaves_none(monkeypatch):
    monkeypatch.setattr(bench_groups, "BOUNDED", 80)
    scenario = scenario_of("nlp.c3", "equal", "subnets:8")
    pipeline = scenario.pipeline("uniform", 0, 10)
    execution = Execution(stages=DEVICES, window=512, order="latest-start")
    plan = scenario.plan(pipeline, execution)
    (stream,) = pipeline.streams
    causal = causal_bound(stream.subnets, stream.chain.rules, scenario.costs, scenario.steps)
    found = stage_bound(scenario, stream, plan)
    run = simulate_run(pipeline, plan, execution, GroupCosts(scenario.costs, 1, 0))
    assert causal.steady_bubble(DEVICES) < 0.05 < found < run.summary.bubble_ratio
