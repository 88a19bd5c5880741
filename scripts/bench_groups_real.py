"""Two groups over one on real workers, in alternation; writes artifacts/groups/real.json.

The same steps, of 4 passes each, by one worker, by two groups of one stage, and by two stages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import naspipe  # noqa: E402
from naspipe.frontend.given.workloads import find_workload  # noqa: E402
from naspipe.frontend.training.api import train_together  # noqa: E402
from naspipe.runtime.devices.environment import describe_environment  # noqa: E402
from naspipe.trace.access.log import read_run_accesses  # noqa: E402
from scripts.comparing.speed import steps_per_second  # noqa: E402

SPACES = {"nlp.c3": 24, "vgg16": 60, "resnet50": 24}
"""Steps of each; ResNet's statistics are deferred, as otherwise its passes go one by one."""
WAYS = {"1x1": (1, 1), "2x1": (2, 1), "1x2": (1, 2)}
"""Groups and stages."""
PASSES = 4


def measure(space: str, way: str, steps: int, place: Path) -> float:
    """Passes per second behind the warm-up."""
    named = find_workload(space, "tiny", None, None)
    norms = "deferred" if space.startswith("resnet") else "ordered"
    recipe = naspipe.core.config.Recipe(
        optimizer=named.recipe.optimizer, optimizer_options=named.recipe.optimizer_options,
        lr=named.recipe.lr, passes=f"accumulate:{PASSES}", norms=norms,
    )  # fmt: skip
    workload = named.redefined(recipe=recipe, steps=steps, seed=1)
    groups, stages = WAYS[way]
    execution = naspipe.Execution(groups=groups, stages=stages, window=8 * PASSES)
    (run,) = train_together([workload], execution, place)
    return steps_per_second(read_run_accesses(run.directory.path))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/groups/real.json")
    arguments = parser.parse_args()
    console, rows = Console(highlight=False), []
    for space in arguments.spaces:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for pair in range(arguments.pairs):
            for way in sorted(WAYS, reverse=bool(pair % 2)):
                with tempfile.TemporaryDirectory() as scratch:
                    speed = measure(space, way, SPACES[space], Path(scratch) / "run")
                found[way].append(speed)
                console.print(f"{space} {way}: {speed:.2f} passes/s")
        ratios = {
            way: [mine / one for mine, one in zip(found[way], found["1x1"], strict=True)]
            for way in WAYS
        }
        rows.append({"space": space, "passes_per_second": found, "over_1x1": ratios})
    table = Table("space", *WAYS, "2x1 over 1x1", "1x2 over 1x1", box=SIMPLE_HEAD)
    for row in rows:
        speeds = [f"{statistics.median(each):.2f}" for each in row["passes_per_second"].values()]
        over = [_spread(row["over_1x1"][way]) for way in ("2x1", "1x2")]
        table.add_row(row["space"], *speeds, *over)
    console.print(table)
    result: dict[str, Any] = {"environment": describe_environment(), "rows": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
