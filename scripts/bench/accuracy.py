"""Real runs beside their simulations: bubble ratio, order of tasks and when they start.

Each run is imitated twice: with what each of its accesses took (its log), and with the layers'
costs, profiled right before it. Links and pauses are those that the log shows. Run it on a quiet
machine. The exit status is 1 where the bubble that the profile foretells is too far from the real.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.api.simulate import logged_costs_of, simulate_again_with
from naspipe.cli.main import main as naspipe
from naspipe.config.errors import NaspipeError
from naspipe.config.execution import Execution
from naspipe.inputs.named import find_measurable
from naspipe.machine.determinism import describe_environment
from naspipe.plan.virtual_costs import TableCosts
from naspipe.profiling.profiles import (
    ProfileCache,
    profile_apart,
)
from naspipe.store.compare import RecordedRun
from scripts.bench.common import ROOT
from scripts.tiny_workload import tiny_workload

TARGET = 0.05
"""The most that the bubbles may differ."""
PROFILE_SECONDS = 300


def measure(space: str, sampler: str, steps: int, stages: int, directory: Path) -> dict[str, Any]:
    """Profile, train, then simulate the same stream."""
    tiny_workload(space)  # its data is prepared
    execution = Execution(stages=stages)
    workload, execution = find_measurable(space, "tiny", None, None, execution, [])
    table = profile_apart(workload, PROFILE_SECONDS)
    ProfileCache(workload).write(table)  # the run takes its partitions from there
    words = ["train", space, "--sampler", sampler, "--steps", str(steps), "--quiet"]
    status = naspipe([*words, "--stages", str(stages), "--run-dir", str(directory)])
    if status:
        raise NaspipeError(f"naspipe {' '.join(words)} ended with exit status {status}")
    recorded = RecordedRun(directory)
    logged = logged_costs_of(recorded)
    profiled = TableCosts(table=table, link_ns=logged.link_ns, pause_ns=logged.pause_ns)
    return {
        "space": space, "sampler": sampler, "stages": stages, "steps": steps,
        "order": recorded.manifest["execution"]["order"],
        "link_ms": logged.link_ns / 1e6, "pause_ms": logged.pause_ns / 1e6,
        "from_log": simulate_again_with(recorded, logged, table).as_dict(),
        "from_profile": simulate_again_with(recorded, profiled, table).as_dict(),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Measure every case, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", default=["nlp.c1", "nlp.c3", "cv.c1"])
    parser.add_argument("--samplers", nargs="+", default=["uniform", "spaced:8"])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/simulator/accuracy.json")
    arguments = parser.parse_args(words)
    cases = []
    for space in arguments.spaces:
        for sampler in arguments.samplers:
            with tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch) / "run"
                case = measure(space, sampler, arguments.steps, arguments.stages, place)
            cases.append(case)
            for source in ("from_log", "from_profile"):
                found = case[source]
                print(
                    f"{space} {sampler} {source}: bubble {found['real_bubble']:.3f} real, "
                    f"{found['simulated_bubble']:.3f} simulated; "
                    f"{found['order_agreement']:.1%} of neighbours in order",
                    flush=True,
                )
    content = {
        "command": "python scripts/bench accuracy", "target": TARGET,
        "environment": describe_environment(), "cases": cases,
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    errors = [abs(case["from_profile"]["bubble_error"]) for case in cases]
    return int(max(errors) > TARGET)
