"""Whether what `naspipe plan` names first is what is fastest on this machine.

The layers are profiled anew, the plan is asked for two devices, and its first rows are trained for
real, in alternation. The first one is right where no other is more than 3 % faster, in the median
over the pairs. Writes artifacts/groups/plan.json. Needs a quiet machine with two free cores. The
exit status is 1 where the plan is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import naspipe  # noqa: E402
from naspipe.api.train import train_together  # noqa: E402
from naspipe.inputs.named import find_workload  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from scripts.comparing.speed import steps_per_second  # noqa: E402

DEVICES = 2
SAMPLER = "uniform"
SEED = 1
NEAR = 0.03
"""So much faster may another row be than the one that the plan names first."""
PASSES = {"nlp.c3": 120, "cv.c3": 240, "vgg16": 480}
"""By the space, how many passes are planned and trained."""
KINDS = {"vgg16": "one,accumulate:4"}
"""What a step is made of, where there are no subnets to choose from."""
ANY_KIND = "one,accumulate:4,subnets:4"

Row = dict[str, Any]
"""Of a plan."""


def said(*words: str) -> str:
    """What a command of naspipe's prints; a process of its own, so that this one can fork."""
    command = [sys.executable, "-m", "naspipe", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def plan(space: str, num_passes: int) -> list[Row]:
    """The rows for two devices, best first, by a profile that was measured just now."""
    said("profile", space, "--fresh")
    return json.loads(
        said(
            "plan", space, "--devices", str(DEVICES), "--samplers", SAMPLER, "--seed", str(SEED),
            "--steps", str(num_passes), "--passes", KINDS.get(space, ANY_KIND), "--json",
        )
    )  # fmt: skip


def measure(space: str, row: Row, num_passes: int) -> float:
    """Passes per second of a real run behind its warm-up."""
    named = find_workload(space, "tiny", None, None)
    recipe = naspipe.config.definition.Recipe(
        optimizer=named.recipe.optimizer, optimizer_options=named.recipe.optimizer_options,
        lr=named.recipe.lr, passes=row["passes"],
    )  # fmt: skip
    steps = num_passes // recipe.settled(named.space.drawn_counts).steps.passes
    workload = named.redefined(recipe=recipe, steps=steps, seed=SEED, sampler=SAMPLER)
    execution = naspipe.Execution(
        groups=row["groups"], stages=row["stages_per_group"], partition=row["partition"]
    )
    with tempfile.TemporaryDirectory() as scratch:
        (run,) = train_together([workload], execution, Path(scratch) / "run")
        return steps_per_second(read_run_accesses(run.directory.path))


def verdict(speeds: Sequence[Sequence[float]]) -> tuple[bool, list[float]]:
    """Whether the first row is the fastest or near it; and each row's speed over the first's.

    Args:
        speeds: of each row, one figure a pair; the rows in the plan's order.
    """
    over = [
        statistics.median(mine / first for mine, first in zip(row, speeds[0], strict=True))
        for row in speeds
    ]
    return max(over) <= 1 + NEAR, over


def checked(space: str, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One space: its plan, and what was measured."""
    num_passes = arguments.passes or PASSES[space]
    rows = plan(space, num_passes)[: arguments.rows]
    speeds: list[list[float]] = [[] for _ in rows]
    for pair in range(arguments.pairs):
        for number in sorted(range(len(rows)), reverse=bool(pair % 2)):
            speeds[number].append(measure(space, rows[number], num_passes))
    is_right, over = verdict(speeds)
    table = Table(
        "passes", "groups x stages", "planned", "measured", "over the first", box=SIMPLE_HEAD,
        title=f"{space}, passes a second: {'right' if is_right else 'WRONG'}",
    )  # fmt: skip
    found = []
    for row, own, ratio in zip(rows, speeds, over, strict=True):
        shape = f"{row['groups']} x {row['stages_per_group']}"
        planned, median = row["steps_per_second"], statistics.median(own)
        table.add_row(row["passes"], shape, f"{planned:.2f}", f"{median:.2f}", f"{ratio:.2f}")
        names = ("passes", "groups", "stages_per_group", "order", "bubble_ratio")
        kept = {name: row[name] for name in names}
        found.append({**kept, "planned": planned, "measured": own, "over_first": ratio})
    console.print(table)
    return {"space": space, "passes": num_passes, "is_right": is_right, "rows": found}


def main() -> int:
    """Check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", choices=PASSES, default=list(PASSES))
    parser.add_argument("--rows", type=int, default=4, help="of each plan, the first ones")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--passes", type=int, help="of each run (default: by the space)")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/groups/plan.json")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    spaces = [checked(space, arguments, console) for space in arguments.spaces]
    result = {"near": NEAR, "environment": describe_environment(), "spaces": spaces}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(not all(space["is_right"] for space in spaces))


if __name__ == "__main__":
    sys.exit(main())
