"""Measure search throughput on two stages against one; writes artifacts/search/throughput.json.

A supernet is trained for a few steps, then the same random subnets are judged on one stage and
on two in turn, each in a process of its own. Subnets per second leave the start and the first
subnets out: times are those at which scores are known. The scores of all must be the same bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.api.search import judge_subnets  # noqa: E402
from naspipe.config.definition import Execution  # noqa: E402
from naspipe.search.search_directory import (  # noqa: E402
    Candidate,
    SearchDefinition,
)
from scripts.search_common import Bench, keep  # noqa: E402

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


def measure(work: Path, stages: int, name: str, budget: int, validate: int) -> float:
    """Subnets per second of one search."""
    bench = Bench(SPACE, SIZES, work, {})
    times = Times()
    definition = SearchDefinition(
        strategy="random", budget=budget, delay=budget, calibration=0, validation=validate
    )
    judge_subnets(
        bench.train("run", 8, "uniform"),
        bench.named.data,
        bench.held_out("valid"),
        bench.named.loss,
        definition,
        Execution(stages=stages),
        name=name,
        observer=times,
    )
    return (budget - WARM_UP - 1) / (times.known[-1] - times.known[WARM_UP])


def main() -> None:
    """Measure in turn, and keep medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--validate", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("WORK", "STAGES:NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        stages, name = options.one[1].split(":")
        work = Path(options.one[0])
        print(measure(work, int(stages), name, options.budget, options.validate))
        return
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as work:
        Bench(SPACE, SIZES, Path(work), {}).train("run", 8, "uniform")
        for number in range(options.repetitions):
            for stages in (1, 2):
                words = ["--one", work, f"{stages}:{stages}-{number}"]
                words += ["--budget", str(options.budget), "--validate", str(options.validate)]
                done = subprocess.run(
                    [sys.executable, __file__, *words], check=True, capture_output=True, text=True
                )
                speeds[stages].append(float(done.stdout.split()[-1]))
                print(f"{stages} stages: {speeds[stages][-1]:.2f} subnets/s", flush=True)
        lines = {path.read_bytes() for path in Path(work).glob("run/search-*/candidates.jsonl")}
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    result = {
        "command": " ".join(["scripts/bench_search.py", *sys.argv[1:]]),
        "space": f"{SPACE} tiny, {json.dumps(SIZES)}",
        "subnets_per_second": {str(k): [round(v, 3) for v in each] for k, each in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "same_bits": len(lines) == 1,
    }
    print(keep("throughput", result))
    print(f"2 stages over 1: {result['ratio']:.2f} (target 1.7), same bits: {result['same_bits']}")


if __name__ == "__main__":
    main()
