"""What a validation every 100 steps costs: runs without, with checkpoints alone, and with it.

Speeds behind the warm-up, and the seconds from the last loss to the end of the run, where what is
left of the validations is waited for. Writes artifacts/search/validation_cost.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.inputs.held_out import find_held_out  # noqa: E402
from scripts.bench_checkpoints import WARM_UP, Clock  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402


def measure(space: str, steps: int, stages: int, how: dict[str, int], path: Path) -> list[float]:
    """Steps per second, and seconds behind the last loss."""
    clock, named = Clock(), tiny_workload(space)
    data = str(named.data.record["name"])  # type: ignore[attr-defined]
    naspipe.train(
        named.space, named.data, named.loss, steps=steps, stages=stages, sampler="spaced:8",
        optimizer=named.recipe.optimizer, lr=named.recipe.lr, run_dir=path, observer=clock,
        optimizer_options=dict(named.recipe.optimizer_options),
        execution=how, held_out=find_held_out(space, "tiny", data),
    )  # fmt: skip
    speed = (len(clock.times) - 1 - WARM_UP) / (clock.times[-1] - clock.times[WARM_UP])
    return [speed, time.monotonic() - clock.times[-1]]


def main() -> None:
    """Measure each in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kinds = {
        "nothing": {},
        "checkpoints": {"checkpoint_every": options.every},
        "validation": {"validate_every": options.every},
    }
    rows = []
    for stages in options.stages:
        found: dict[str, list[list[float]]] = {name: [] for name in kinds}
        for _ in range(options.rounds):
            for name, how in kinds.items():
                with tempfile.TemporaryDirectory() as scratch:
                    path = Path(scratch) / "run"
                    found[name].append(measure(options.space, options.steps, stages, how, path))
        for name, each in found.items():
            speed, behind = (median(column) for column in zip(*each, strict=True))
            row = {
                "stages": stages,
                "with": name,
                "steps_per_second": speed,
                "seconds_behind": behind,
            }
            rows.append({**row, "each": each})
            print(row, flush=True)
    path = ROOT / "artifacts/search/validation_cost.json"
    how = {name: getattr(options, name) for name in ("space", "steps", "every", "rounds")}
    path.write_text(json.dumps({**how, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
