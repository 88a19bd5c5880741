"""Measure search throughput on two stages against one.

A supernet is trained for a few steps, then the same random subnets are judged on one stage and
on two in turn, each in a process of its own. Subnets per second leave the start and the first
subnets out: times are those at which scores are known. The scores of all must be the same bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from naspipe.api.search import judge_subnets
from naspipe.api.training import Training
from naspipe.config.execution import Execution
from naspipe.inputs.held_out import find_held_out
from naspipe.inputs.run import Run
from naspipe.jobs.workload import Workload
from naspipe.search.search_directory import Candidate, SearchDefinition
from naspipe.wire.reports import Observer
from scripts.bench.common import ROOT, Spread, keep, measure_apart
from scripts.tiny_workload import tiny_workload

SPACE = "nlp.c3"
SIZES = {"max_tokens": 600}
WARM_UP = 8


class Times:
    """Notes when each score is known."""

    def __init__(self) -> None:
        self.known: list[float] = []

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """The next subnet is judged."""
        self.known.append(time.perf_counter())

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Nothing."""


def supernet(work: Path) -> Workload:
    """Train the supernet once, and return what it was trained on."""
    workload = tiny_workload(SPACE, SIZES)
    if not (work / "run").is_dir():
        workload = workload.redefined(steps=8, seed=1, sampler="uniform")
        source = {"space": SPACE, "scale": "tiny", "data": None, "sizes": SIZES}
        Training(
            workloads=[workload],
            execution=Execution(order="paper"),
            path=work / "run",
            observer=Observer(),
            sources=[source],
        ).run()
    return workload


def measure(work: Path, stages: int, name: str, budget: int, validate: int) -> float:
    """Return the subnets per second of one search."""
    workload = supernet(work)
    data_name = str(workload.data.record["name"])  # type: ignore[attr-defined]
    times = Times()
    definition = SearchDefinition(
        strategy="random", budget=budget, delay=budget, calibration=0, validation=validate
    )
    judge_subnets(
        Run(workload.space, work / "run"),
        workload.data,
        find_held_out(SPACE, "tiny", data_name, split="valid", sizes=SIZES),
        workload.loss,
        definition,
        Execution(stages=stages),
        name=name,
        observer=times,
    )
    return (budget - WARM_UP - 1) / (times.known[-1] - times.known[WARM_UP])


def main(words: Sequence[str] | None = None) -> int:
    """Measure in turn, and keep medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--validate", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("WORK", "STAGES:NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.one:
        stages, name = options.one[1].split(":")
        place = Path(options.one[0])
        print(measure(place, int(stages), name, options.budget, options.validate))
        return 0
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as work:
        supernet(Path(work))
        for number in range(options.repetitions):
            for stages in (1, 2):
                one = ["--one", work, f"{stages}:{stages}-{number}"]
                one += ["--budget", str(options.budget), "--validate", str(options.validate)]
                speeds[stages] += measure_apart("search", one)
                print(f"{stages} stages: {speeds[stages][-1]:.2f} subnets/s", flush=True)
        lines = {path.read_bytes() for path in Path(work).glob("run/search-*/candidates.jsonl")}
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    result = {
        "space": f"{SPACE} tiny, {json.dumps(SIZES)}",
        "subnets_per_second": {str(k): [round(v, 3) for v in each] for k, each in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "same_bits": len(lines) == 1,
    }
    keep(ROOT / "artifacts/search/throughput.json", "search", words or sys.argv[2:], result)
    print(f"2 stages over 1: {Spread.of(ratios)} (target 1.7), same bits: {result['same_bits']}")
    return int(not result["same_bits"])
