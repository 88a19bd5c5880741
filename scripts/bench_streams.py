"""Measure two streams on one pipeline, and two dispatch orders; real runs on two stages.

Two streams share the stages: their subnets per second together, over one stream's. Then one
stream under the critical-path order over the paper's. Alternating, each run a process of its own;
the bits of every run are compared. Written to artifacts/streams/ and artifacts/orders/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.compare import compare_runs  # noqa: E402
from naspipe.store.metrics import makespan_seconds  # noqa: E402
from naspipe.store.run_directory import RunDirectory  # noqa: E402
from scripts.paper.common import Headline, Result, keep, show  # noqa: E402
from scripts.paper.summary import write_summary  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

STAGES = 2
SEEDS = (0, 1)
KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "one stream": (SEEDS[:1], "auto"),
    "other stream": (SEEDS[1:], "auto"),
    "two streams": (SEEDS, "auto"),
    "paper's order": (SEEDS[:1], "paper"),
    "critical path": (SEEDS[:1], "critical-path"),
}
"""Seeds and dispatch order of each kind of run."""
TARGETS = {"streams": 1.25, "orders": 1.08}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c3")
    parser.add_argument("--sampler", default="uniform")
    parser.add_argument("--steps", type=int, default=100, help="subnets of each stream")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts", metavar="DIR")
    parser.add_argument("--one", choices=list(KINDS), help="make one run and print its speed")
    parser.add_argument("--run-dir", type=Path, help="where --one leaves its run")
    return parser.parse_args()


def measure_one(arguments: argparse.Namespace) -> None:
    """Train in this process; print subnets per second and where the runs are."""
    named = tiny_workload(arguments.space)
    recipe = named.recipe
    seeds, order = KINDS[arguments.one]
    workloads = [
        naspipe.workload(
            named.space, named.data, named.loss, steps=arguments.steps, seed=seed,
            optimizer=recipe.optimizer, lr=recipe.lr, optimizer_options=recipe.optimizer_options,
            sampler=arguments.sampler,
        )
        for seed in seeds
    ]  # fmt: skip
    execution = naspipe.Execution(stages=STAGES, order=order)
    runs = naspipe.train_together(workloads, execution, arguments.run_dir)
    accesses = [access for run in runs for access in read_run_accesses(run.directory.path)]
    measured = runs[0].manifest["measured"]
    print(
        json.dumps(
            {
                "steps_per_second": len(seeds) * arguments.steps / makespan_seconds(accesses),
                "bubble": measured["bubble_ratio"],
                "order": runs[0].manifest["execution"]["order"],
                "runs": [str(run.directory.path) for run in runs],
            }
        )
    )


def measure_apart(arguments: argparse.Namespace, kind: str, path: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [
        sys.executable, __file__, "--one", kind, "--run-dir", str(path), "--space",
        arguments.space, "--sampler", arguments.sampler, "--steps", str(arguments.steps),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {kind}: {found['steps_per_second']:.2f}", file=sys.stderr, flush=True)
    return found


def same_bits(first: str, second: str) -> bool:
    """Whether `naspipe compare` finds two runs identical, order of accesses included."""
    return compare_runs([RunDirectory(Path(p)).path for p in (first, second)])[0].is_identical


def main() -> int:
    """Measure in alternation; the exit status is 1 where bits differ, whatever the speeds are."""
    arguments = parse()
    if arguments.one:
        measure_one(arguments)
        return 0
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    bubbles: dict[str, float] = {}
    results: list[Result] = []
    equal = {"streams": True, "orders": True}
    for repetition in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as scratch:
            found = {
                kind: measure_apart(arguments, kind, Path(scratch) / str(number))
                for number, kind in enumerate(KINDS)
            }
            for kind, each in found.items():
                speeds[kind].append(each["steps_per_second"])
                bubbles[kind] = each["bubble"]
            if repetition == 0:
                solo = [found[kind]["runs"][0] for kind in ("one stream", "other stream")]
                pairs = zip(solo, found["two streams"]["runs"], strict=True)
                equal["streams"] = all(same_bits(a, b) for a, b in pairs)
                orders = [found[kind]["runs"][0] for kind in ("paper's order", "critical path")]
                equal["orders"] = same_bits(*orders)
        results = results_of(arguments, speeds, bubbles, equal)
        for result in results:
            keep(result, "scripts/bench_streams.py", arguments.output / result.experiment, draw)
    for result in results:
        show(result)
    write_summary(arguments.output)
    return 0 if all(equal.values()) else 1


def results_of(
    arguments: argparse.Namespace,
    speeds: dict[str, list[float]],
    bubbles: dict[str, float],
    equal: dict[str, bool],
) -> list[Result]:
    """Both questions, as far as the repetitions went."""
    kinds = {"streams": ("one stream", "two streams"), "orders": ("paper's order", "critical path")}
    return [
        result_of(arguments, name, pair, speeds, bubbles, equal[name])
        for name, pair in kinds.items()
    ]


def result_of(
    arguments: argparse.Namespace,
    name: str,
    kinds: tuple[str, str],
    speeds: dict[str, list[float]],
    bubbles: dict[str, float],
    is_equal: bool,
) -> Result:
    """One kind over the other, repetition by repetition."""
    base, other = kinds
    ratios = [b / a for a, b in zip(speeds[base], speeds[other], strict=True)]
    rows = [
        {"run": kind, "median_per_second": statistics.median(speeds[kind]),
         "least": min(speeds[kind]), "most": max(speeds[kind]), "bubble": bubbles[kind]}
        for kind in kinds
    ]  # fmt: skip
    median = statistics.median(ratios)
    return Result(
        experiment=name,
        title=f"{other} over {base}: {arguments.space} tiny, {arguments.sampler}, {STAGES} stages",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{other} over {base}, subnets per second (target {TARGETS[name]}x)",
                f"{median:.2f}x ({min(ratios):.2f} to {max(ratios):.2f}); bits "
                f"{'the same' if is_equal else 'DIFFER'}",
                "-",
            )
        ],
        differs="the paper measures neither",
        settings={"steps": arguments.steps, "repetitions": len(ratios)},
        extra={"ratios": ratios, "median_ratio": median, "target": TARGETS[name]},
        holds=is_equal,
    )


def draw(result: Result, figure: Any) -> None:
    """Two bars."""
    figure.set_size_inches(5, 3.4)
    axis = figure.subplots()
    medians = [row["median_per_second"] for row in result.rows]
    spread = [
        [row["median_per_second"] - row["least"] for row in result.rows],
        [row["most"] - row["median_per_second"] for row in result.rows],
    ]
    axis.bar([row["run"] for row in result.rows], medians, yerr=spread, color=["C5", "C0"])
    axis.set_title(f"subnets per second: {result.extra['median_ratio']:.2f}x", fontsize=10)


if __name__ == "__main__":
    sys.exit(main())
