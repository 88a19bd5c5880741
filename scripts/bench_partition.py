"""Balanced partitions against a static one, simulated at the costs of Table 5.

Seven spaces on 4 and 8 stages: how even the stages of a subnet are, the throughput where
neighbours never conflict (``spaced``) and where they do (``uniform``), and what is mirrored.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import search_spaces  # noqa: E402
from naspipe.api.simulate import Scenario, table5_scenario  # noqa: E402
from naspipe.config.definition import Execution  # noqa: E402
from naspipe.config.ids import StageId, Subnet  # noqa: E402
from naspipe.config.partition import Partition  # noqa: E402
from naspipe.engine.history import Whereabouts  # noqa: E402
from naspipe.plan.partitions import peak_to_mean  # noqa: E402

ASSUMED = (
    "costs are those of the paper's Table 5 (search_spaces/table5.py), recompute on, WRITEs take "
    "no time, every layer is on the device, no shared layers",
    "a layer's bytes are its parameters: Table 5's swap-in time at 12 GB/s",
    "messages and mirrored layers take no time on the links; the bytes mirrored are given beside",
    "spaced:W with W = 2 x stages, or the number of candidates - 1 where that is less",
    "the dispatch order is what 'auto' chooses for the static partition, the same for both",
)
WINDOW = 64
TARGET = (
    "balanced is never slower with spaced. With uniform, where causality bounds the bubble, the "
    "chain of WRITEs decides and not the dearest stage: it is shown beside"
)
KINDS = ("static", "balanced")
MEASURED = ("steps_per_second", "bubble_ratio", "peak_to_mean", "peak_to_mean_p95", "mirrored_mb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated."""

    space: str
    subnets: int
    seed: int
    stages: int
    sampler: str
    partition: str = "static"
    order: str = "auto"


@lru_cache(maxsize=8)
def scenario_of(space: str) -> Scenario:
    """A space at Table 5's costs, without shared layers."""
    return table5_scenario(space, with_shared=False)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """What to simulate with both kinds of partition."""
    for space in arguments.spaces:
        most = min(scenario_of(space).space.candidate_counts) - 1
        for stages in (4, 8):
            for sampler in (f"spaced:{min(2 * stages, most)}", "uniform"):
                for seed in range(arguments.seeds):
                    yield Case(
                        space=space, subnets=arguments.subnets, seed=seed, stages=stages,
                        sampler=sampler,
                    )  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """The figures of one run, and the order it had."""
    scenario = scenario_of(case.space)
    pipeline = scenario.pipeline(case.sampler, case.seed, case.subnets)
    execution = Execution(
        stages=case.stages, window=WINDOW, recompute=True, order=case.order,
        partition=case.partition,
    )  # fmt: skip
    plan = scenario.plan(pipeline, execution)
    summary = scenario.run(pipeline, execution, plan).summary
    subnets, partitions = pipeline.streams[0].subnets, plan.streams[0].partitions
    ratios = peak_to_mean(subnets, partitions, scenario.costs)
    return {
        "order": plan.order,
        "steps_per_second": summary.passes_per_second,
        "bubble_ratio": summary.bubble_ratio,
        "peak_to_mean": statistics.fmean(ratios),
        "peak_to_mean_p95": statistics.quantiles(ratios, n=20)[-1],
        "mirrored_mb": mirrored_bytes(scenario, case.stages, subnets, partitions)
        / len(subnets) / 1e6,
    }  # fmt: skip


def mirrored_bytes(
    scenario: Scenario, num_stages: int, subnets: Sequence[Subnet], partitions: Sequence[Partition]
) -> int:
    """Bytes of the layers that are handed from stage to stage over the whole stream."""
    if scenario.sizes is None:
        return 0
    sizes, whereabouts = scenario.sizes.table, Whereabouts([scenario.space.rules])
    return sum(
        sizes.of(departure.layer.block, departure.layer.candidate).state_bytes
        for subnet, partition in zip(subnets, partitions, strict=True)
        for stage in range(num_stages)
        for departure in whereabouts.admit(StageId(stage), subnet, partition)
    )


def simulate_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every run as one flat row, static and balanced in turn."""
    rows: list[dict[str, Any]] = []
    for case in cases(arguments):
        order = case.order
        for kind in KINDS:
            same = replace(case, partition=kind, order=order)
            rows.append({**asdict(same), **measure(same)})
            order = rows[-1]["order"]
        static, balanced = rows[-2:]
        gain = balanced["steps_per_second"] / static["steps_per_second"]
        print(
            f"{case.space} {case.stages} stages {case.sampler:9} seed {case.seed} ({order}): "
            f"balanced over static {gain:.4f}; peak to mean {static['peak_to_mean']:.3f} -> "
            f"{balanced['peak_to_mean']:.3f}; {balanced['mirrored_mb']:.0f} MB mirrored",
            flush=True,
        )
    return rows


def averages(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of both kinds side by side, and the gain of ``balanced``."""
    groups: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        group = groups.setdefault((row["space"], row["stages"], row["sampler"]), {})
        group.setdefault(row["partition"], []).append(row)
    result = []
    for (space, stages, sampler), kinds in groups.items():
        gains = [
            balanced["steps_per_second"] / static["steps_per_second"]
            for static, balanced in zip(*(kinds[kind] for kind in KINDS), strict=True)
        ]
        result.append(
            {
                "space": space, "stages": stages, "sampler": sampler,
                "gain": {"mean": statistics.fmean(gains), "min": min(gains), "max": max(gains)},
                **{
                    kind: {n: statistics.fmean(row[n] for row in members) for n in MEASURED}
                    for kind, members in kinds.items()
                },
            }
        )  # fmt: skip
    return result


def draw(means: Sequence[dict[str, Any]], path: Path) -> None:
    """Peak to mean by space, gain by space, bytes mirrored by space."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    spaces = list(dict.fromkeys(row["space"] for row in means))
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")

    def bars(axis: Any, series: Sequence[tuple[str, Sequence[float]]]) -> None:
        width = 0.8 / len(series)
        for number, (label, values) in enumerate(series):
            places = [place + width * number for place in range(len(spaces))]
            axis.bar(places, values, width, label=label)
        axis.set_xticks([place + 0.4 - width / 2 for place in range(len(spaces))], spaces)
        axis.legend(fontsize="small")

    uniform = {(r["space"], r["stages"]): r for r in means if r["sampler"] == "uniform"}
    others = {(r["space"], r["stages"]): r for r in means if r["sampler"] != "uniform"}
    both = [(stages, kind) for stages in (4, 8) for kind in KINDS]
    bars(
        axes[0],
        [
            (f"{kind}, {n} stages", [uniform[s, n][kind]["peak_to_mean"] for s in spaces])
            for n, kind in both
        ],
    )
    axes[0].set_ylim(1.0, 1.8)
    axes[0].set_title("dearest stage / mean stage of a subnet")
    samplers = [("spaced", others), ("uniform", uniform)]
    bars(
        axes[1],
        [
            (f"{name}, {n} stages", [found[s, n]["gain"]["mean"] for s in spaces])
            for n in (4, 8)
            for name, found in samplers
        ],
    )
    axes[1].axhline(1.0, color="black", linewidth=0.8)
    axes[1].set_ylim(bottom=0.9)
    axes[1].set_title("throughput, balanced over static")
    bars(
        axes[2],
        [
            (f"{n} stages", [uniform[s, n]["balanced"]["mirrored_mb"] for s in spaces])
            for n in (4, 8)
        ],
    )
    axes[2].set_title("MB mirrored per subnet, balanced, uniform")
    figure.savefig(path, dpi=110)


def main() -> int:
    """Simulate, write, draw; the exit status is 1 where balanced is slower with ``spaced``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", default=search_spaces.names())
    parser.add_argument("--subnets", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/partition")
    arguments = parser.parse_args()
    rows = simulate_all(arguments)
    means = averages(rows)
    arguments.output.mkdir(parents=True, exist_ok=True)
    content = {
        "command": "python scripts/bench_partition.py", "subnets": arguments.subnets,
        "seeds": arguments.seeds, "window": WINDOW, "target": TARGET,
        "assumed": ASSUMED, "means": means,
    }  # fmt: skip
    (arguments.output / "simulated.json").write_text(json.dumps(content, indent=1) + "\n")
    with (arguments.output / "simulated.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(means, arguments.output / "simulated.png")
    slower = [row for row in means if row["gain"]["mean"] < 1]
    for row in slower:
        print(f"balanced is slower: {row['space']} {row['stages']} stages {row['sampler']}")
    return int(any(row["sampler"] != "uniform" for row in slower))


if __name__ == "__main__":
    sys.exit(main())
