"""Balanced partitions against a static one on two real stages, in alternation.

Subnets per second where neighbours never conflict, how even the stages are by the profile, and the
bytes mirrored. Written to artifacts/partition_real/. The exit status is 1 where bits differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.paper.common import Headline, Result, keep, real_run, show  # noqa: E402
from scripts.paper.summary import write_summary  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

STAGES = 2
KINDS = ("static", "balanced")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", default=["nlp.c1", "cv.c1"])
    parser.add_argument("--sampler", default="spaced:4")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts", metavar="DIR")
    return parser.parse_args()


def rows_of(space: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Both kinds in one space; speeds in the order of the repetitions."""
    tiny_workload(space)  # its data is prepared
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.repetitions):
        for kind in KINDS:
            run = real_run(
                space=space, sampler=arguments.sampler, steps=arguments.steps, stages=STAGES,
                flows=True, execution={"partition": kind},
            )  # fmt: skip
            found[kind].append(run)
    rows = []
    for kind in KINDS:
        speeds = [run["passes_per_second"] for run in found[kind]]
        rows.append(
            {
                "space": space, "sampler": arguments.sampler, "partition": kind,
                "median_per_second": statistics.median(speeds), "least": min(speeds),
                "most": max(speeds), "order": found[kind][0]["order"],
                "bubble": statistics.median(run["bubble_ratio"] for run in found[kind]),
                "mirrored_kb_per_subnet": found[kind][0]["pushed_bytes"] / arguments.steps / 1e3,
                "speeds": speeds,
                "same_bits": found[kind][0]["loss_bits"] == found["static"][0]["loss_bits"],
            }
        )  # fmt: skip
    return rows


def gain(rows: list[dict[str, Any]], space: str) -> list[float]:
    """Balanced over static, repetition by repetition."""
    static, balanced = (
        next(row["speeds"] for row in rows if (row["space"], row["partition"]) == (space, kind))
        for kind in KINDS
    )
    return [b / a for a, b in zip(static, balanced, strict=True)]


def headline(rows: list[dict[str, Any]], space: str) -> Headline:
    """The gain in one space, and what it took."""
    ratios = gain(rows, space)
    balanced = next(r for r in rows if (r["space"], r["partition"]) == (space, "balanced"))
    return Headline(
        f"{space} tiny, {balanced['sampler']}, {STAGES} stages: balanced over static",
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"{balanced['mirrored_kb_per_subnet']:.0f} kB mirrored per subnet",
        "without mirroring slightly slower",
    )


def draw(result: Result, figure: Any) -> None:
    """Two bars per space."""
    figure.set_size_inches(6, 3.4)
    axis = figure.subplots()
    labels = [f"{row['space']}\n{row['partition']}" for row in result.rows]
    medians = [row["median_per_second"] for row in result.rows]
    spread = [
        [row["median_per_second"] - row["least"] for row in result.rows],
        [row["most"] - row["median_per_second"] for row in result.rows],
    ]
    colours = ["C5" if row["partition"] == "static" else "C0" for row in result.rows]
    axis.bar(labels, medians, yerr=spread, color=colours)
    axis.set_title(f"subnets per second, {STAGES} stages", fontsize=10)


def main() -> int:
    """Measure, write and print."""
    arguments = parse()
    rows: list[dict[str, Any]] = []
    for space in arguments.spaces:
        rows += rows_of(space, arguments)
        result = result_of(rows, arguments)
        keep(result, "scripts/bench_partition_real.py", arguments.output / "partition_real", draw)
    write_summary(arguments.output)
    show(result)
    return int(not result.holds)


def result_of(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> Result:
    """Of the spaces that were measured."""
    spaces = list(dict.fromkeys(row["space"] for row in rows))
    return Result(
        experiment="partition_real",
        title=f"Balanced against static partitions, {STAGES} stages",
        kind="real",
        rows=rows,
        headlines=[headline(rows, space) for space in spaces],
        differs="tiny spaces on two CPU processes; the paper's figure is of 8 GPUs",
        settings={"steps": arguments.steps, "repetitions": arguments.repetitions},
        extra={"gains": {space: gain(rows, space) for space in spaces}},
        holds=all(row["same_bits"] for row in rows),
    )


if __name__ == "__main__":
    sys.exit(main())
