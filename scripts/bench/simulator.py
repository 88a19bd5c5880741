"""What a simulation costs: time, peak memory, and time per task as streams grow.

Each case runs in a process of its own, so that its peak memory is its own. A task is one
subnet's forward or backward on one stage. The exit status is 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.api.simulate import table5_scenario
from naspipe.config.execution import Execution
from scripts.bench.common import ROOT, measure_apart

LARGE = [(32, 10_000, "spaced:64"), (32, 10_000, "uniform")]
TARGETS = {"seconds": 120.0, "peak_rss_mib": 2048.0, "growth": 1.15}
"""Of a large case at most; and a task of the longest stream over one of the shortest."""
GROWING = [(2, 1_000, "uniform"), (2, 10_000, "uniform"), (2, 100_000, "uniform")]


def measure(stages: int, steps: int, sampler: str) -> dict[str, Any]:
    """Simulate nlp.c1 once, in the paper's order."""
    scenario = table5_scenario("nlp.c1", with_shared=False)
    execution = Execution(stages=stages, order="paper", window=64, recompute=True)
    before, before_cpu = time.perf_counter(), time.process_time()
    pipeline = scenario.pipeline(sampler, 0, steps)
    plan = scenario.plan(pipeline, execution)
    planned = time.perf_counter()
    run = scenario.run(pipeline, execution, plan)
    simulated = time.perf_counter()
    bubble = run.summary.bubble_ratio
    seconds, cpu = time.perf_counter() - before, time.process_time() - before_cpu
    return {
        "stages": stages, "subnets": steps, "sampler": sampler, "seconds": seconds,
        "cpu_seconds": cpu, "plan_seconds": planned - before,
        "run_seconds": simulated - planned,
        "microseconds_per_task": cpu / (steps * stages * 2) * 1e6,
        "microseconds_per_block_step": cpu / (steps * 48 * 2) * 1e6,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bubble_ratio": bubble,
    }  # fmt: skip


def verdicts(cases: list[dict[str, Any]]) -> dict[str, float]:
    """What the targets are about."""
    large, growing = cases[len(GROWING) :], cases[: len(GROWING)]
    found = {name: max(case[name] for case in large) for name in ("seconds", "peak_rss_mib")}
    costs = [case["microseconds_per_task"] for case in growing]
    return {**found, "growth": costs[-1] / costs[0]}


def main(words: Sequence[str] | None = None) -> int:
    """Run every case, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("STAGES", "SUBNETS", "SAMPLER"))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/simulator/speed.json")
    arguments = parser.parse_args(words)
    if arguments.one:
        stages, steps, sampler = arguments.one
        print(json.dumps(measure(int(stages), int(steps), sampler)))
        return 0
    cases = []
    for stages, steps, sampler in [*GROWING, *LARGE]:
        cases += measure_apart("simulator", ["--one", str(stages), str(steps), sampler])
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in cases[-1].items()})
    found = verdicts(cases)
    result = {
        "command": "python scripts/bench simulator", "space": "nlp.c1", "blocks": 48,
        "order": "paper", "python": platform.python_version(), "machine": platform.machine(),
        "targets": TARGETS, "found": found, "cases": cases,
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print("targets", TARGETS, "found", {name: round(value, 2) for name, value in found.items()})
    return int(any(found[name] > most for name, most in TARGETS.items()))
