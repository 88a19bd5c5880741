"""Where the time of a step goes: parts without those that they call, and none forgotten."""

from __future__ import annotations

import time

from scripts.bench import step_costs
from scripts.tiny_workload import tiny_workload


def test_a_part_does_not_count_those_that_it_calls(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = step_costs.Clock()
    inner = clock.timed("inner", lambda: "done")
    assert inner() == "done" and not clock.calls, "nothing has begun"
    assert clock.timed("outer", inner, begins=True)() == "done"
    assert dict(clock.seconds) == {"outer": 3.0, "inner": 3.0}
    assert dict(clock.calls) == {"outer": 1, "inner": 1}


def test_each_part_of_a_step_is_seen(computes_here):
    workload = tiny_workload("cnn").redefined(steps=4)
    blocks = len(workload.space)
    plain = step_costs.measure(step_costs.PLAIN, workload, [])
    found = step_costs.measure(step_costs.PIPED, workload, ["memory_budget=1x"])
    names = {part for part, _, _ in step_costs.PARTS} | {step_costs.LOOP}
    assert set(found) == names and set(plain) < names
    assert all(each["ms"] > 0 for each in (*found.values(), *plain.values()))
    assert found[step_costs.FORWARD]["calls"] == blocks
    assert found[step_costs.OPTIMIZERS]["calls"] == found["WRITEs, around optimizers"]["calls"]
    both = {step_costs.PIPED: found, step_costs.PLAIN: plain}
    assert list(step_costs.table_of(both).columns[0].cells)[-1] == "together"
