"""What a checkpoint every 100 steps costs: runs with and without, in turn.

Writes artifacts/faults/checkpoint_cost.json. Run it with a high priority on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.frontend.workloads import Named  # noqa: E402
from naspipe.runtime.reports import SilentObserver  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

WARM_UP = 20


class Clock(SilentObserver):
    """Notes when each loss came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`naspipe.runtime.reports.LaunchObserver`."""
        self.times.append(time.monotonic())


def speed(named: Named, steps: int, stages: int, every: int, path: Path) -> float:
    """Steps per second behind the warm-up."""
    clock = Clock()
    naspipe.train(
        named.space, named.data, named.loss, steps=steps, stages=stages, sampler="spaced:8",
        optimizer=named.recipe.optimizer, lr=named.recipe.lr, run_dir=path, observer=clock,
        optimizer_options=dict(named.recipe.optimizer_options),
        execution={"checkpoint_every": every},
    )  # fmt: skip
    return (len(clock.times) - 1 - WARM_UP) / (clock.times[-1] - clock.times[WARM_UP])


def main() -> int:
    """Measure; the exit status is 1 when the median costs more than 3 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no pair after that")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "artifacts/faults/checkpoint_cost.json"
    )
    arguments = parser.parse_args()
    named = tiny_workload(arguments.space)
    pairs: list[dict[str, Any]] = []
    start = time.monotonic()
    for number in range(arguments.pairs):
        if time.monotonic() - start > 60 * arguments.minutes:
            break
        found = {}
        for every in ((0, arguments.every), (arguments.every, 0))[number % 2]:
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "run"
                found[every] = speed(named, arguments.steps, arguments.stages, every, path)
        cost = 1 - found[arguments.every] / found[0]
        pairs.append({"without": found[0], "with": found[arguments.every], "cost": cost})
        print(pairs[-1], flush=True)
        cost = median(pair["cost"] for pair in pairs)
        how = {name: getattr(arguments, name) for name in ("space", "steps", "stages", "every")}
        result = {**how, "median_cost": cost, "pairs": pairs}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(cost > 0.03)


if __name__ == "__main__":
    sys.exit(main())
