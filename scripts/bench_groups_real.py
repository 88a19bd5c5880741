"""Two groups over one on real workers, in alternation; writes artifacts/groups/real.json.

The same steps by one worker, by two groups of one stage, and by two stages. Beside them two runs of
one worker at once that have nothing to do with each other: the most that this machine can give.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

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

WAYS = ("1x1", "2x1", "1x2", "apart")
"""Groups and stages; or two runs of 1x1 at once."""


class Case(NamedTuple):
    """What is trained."""

    space: str
    steps: int
    passes: str = "accumulate:4"
    norms: str = "ordered"
    """ResNet's statistics are deferred, as otherwise its passes go one by one."""
    sampler: str = "uniform"
    ways: tuple[str, ...] = WAYS
    batch_size: int | None = None


CASES = {
    "nlp.c3": Case("nlp.c3", 24),
    "vgg16": Case("vgg16", 60, "accumulate:8"),
    "resnet50": Case("resnet50", 12, "accumulate:8", "deferred"),
    "stem": Case(
        "scripts.stem_supernet:space",
        160,
        "one",
        "deferred",
        "spaced:3",
        ("1x1", "1x2", "apart"),
        64,
    ),
}
"""By name; of ``stem`` see scripts/stem_supernet.py."""


def apart(name: str) -> float:
    """Passes per second of two runs at once, together."""
    command = [sys.executable, __file__, "--one", name]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return sum(float(run.communicate()[0]) for run in runs)


def measure(case: Case, way: str, place: Path) -> float:
    """Passes per second behind the warm-up."""
    data = "fashion-mnist" if case.batch_size else None
    sizes = {"batch_size": case.batch_size} if case.batch_size else None
    named = find_workload(case.space, "tiny", data, None, sizes)
    recipe = naspipe.config.definition.Recipe(
        optimizer=named.recipe.optimizer, optimizer_options=named.recipe.optimizer_options,
        lr=named.recipe.lr, passes=case.passes, norms=case.norms,
    )  # fmt: skip
    workload = named.redefined(recipe=recipe, steps=case.steps, seed=1, sampler=case.sampler)
    groups, stages = map(int, way.split("x"))
    window = 8 * workload.recipe.steps.passes
    execution = naspipe.Execution(groups=groups, stages=stages, window=window)
    (run,) = train_together([workload], execution, place)
    return steps_per_second(read_run_accesses(run.directory.path))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--spaces", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/groups/real.json")
    parser.add_argument("--one", choices=CASES, help="measure one run of one worker and print it")
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory() as scratch:
            print(measure(CASES[arguments.one], "1x1", Path(scratch) / "run"))
        return
    console, rows = Console(highlight=False), []
    for space in arguments.spaces:
        case = CASES[space]
        found: dict[str, list[float]] = {way: [] for way in case.ways}
        for pair in range(arguments.pairs):
            for way in sorted(case.ways, reverse=bool(pair % 2)):
                with tempfile.TemporaryDirectory() as scratch:
                    place = Path(scratch) / "run"
                    speed = apart(space) if way == "apart" else measure(case, way, place)
                found[way].append(speed)
                console.print(f"{space} {way}: {speed:.2f} passes/s")
        ratios = {
            way: [mine / one for mine, one in zip(found[way], found["1x1"], strict=True)]
            for way in case.ways
        }
        rows.append({"space": space, "passes_per_second": found, "over_1x1": ratios})
    table = Table("space", *WAYS, *(f"{way} over 1x1" for way in WAYS[1:]), box=SIMPLE_HEAD)
    for row in rows:
        speeds = {way: f"{statistics.median(v):.2f}" for way, v in row["passes_per_second"].items()}
        over = {way: _spread(ratios) for way, ratios in row["over_1x1"].items()}
        cells = [speeds.get(way, "") for way in WAYS] + [over.get(way, "") for way in WAYS[1:]]
        table.add_row(row["space"], *cells)
    console.print(table)
    result: dict[str, Any] = {"environment": describe_environment(), "rows": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
