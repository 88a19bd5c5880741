"""Bubble ratios of the dispatch orders beside the causal bound, with Table 5's costs.

Recompute, no time for messages, 64 subnets of the stream known and as many under way. Results are
kept as they come: a second start goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import search_spaces  # noqa: E402
from naspipe.core.config import Execution  # noqa: E402
from naspipe.frontend.scenario import table5_scenario  # noqa: E402
from naspipe.sim.outcome import bound_of  # noqa: E402
from naspipe.sim.plan import by_critical_path  # noqa: E402

KNOWN = 64
GRID = {
    "uniform": ((2, 4, 8), ("paper", "critical-path")),
    "spaced:16": ((4, 8), ("paper", "critical-path")),
    "fair": ((4, 8), ("paper", "critical-path")),
}
"""Stages and orders that each sampler is simulated with."""
FIELDS = ("space", "shared", "sampler", "stages", "order", "seed")

Case = tuple[str, bool, str, int, str, int]


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Every case that was asked for."""
    return [
        (name, shared, sampler, stages, order, seed)
        for shared in (False, True)
        for sampler, (counts, orders) in GRID.items()
        for stages in counts
        for name in arguments.spaces
        for order in orders
        for seed in range(arguments.seeds)
    ]


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Simulate one case."""
    name, shared, sampler, stages, order, seed = case
    scenario = table5_scenario(name, with_shared=shared)
    execution = Execution(stages=stages, order="paper", window=KNOWN, recompute=True)
    pipeline = scenario.pipeline(sampler, seed, steps)
    plan = scenario.plan(pipeline, execution)
    if order == "critical-path":
        plan = by_critical_path(plan, pipeline, KNOWN)
    run = scenario.run(pipeline, execution, plan)
    bound = bound_of(pipeline)
    return {
        **dict(zip(FIELDS, case, strict=True)),
        "bubble": run.summary.bubble_ratio,
        "bound": bound.bubble(stages),
        "steady_bound": bound.steady_bubble(stages),
        "steps_per_second": run.summary.steps_per_second,
    }


def averages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[field] for field in FIELDS[:-1])].append(row)
    return [
        {
            **dict(zip(FIELDS, key, strict=False)),
            "seeds": len(group),
            **{
                name: round(statistics.mean(row[name] for row in group), 4)
                for name in ("bubble", "bound", "steady_bound", "steps_per_second")
            },
        }
        for key, group in groups.items()
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Uniform sampling without shared layers: each order's bubble over the bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [row for row in rows if row["sampler"] == "uniform" and not row["shared"]]
    counts = sorted({row["stages"] for row in chosen})
    figure, axes = pyplot.subplots(1, len(counts), figsize=(4 * len(counts), 3.4), sharey=True)
    for stages, axis in zip(counts, axes, strict=True):
        names = list(dict.fromkeys(r["space"] for r in chosen if r["stages"] == stages))
        series = {
            order: {r["space"]: r["bubble"] for r in chosen
                    if (r["stages"], r["order"]) == (stages, order)}
            for order in ("paper", "critical-path")
        }  # fmt: skip
        bound = {r["space"]: r["steady_bound"] for r in chosen if r["stages"] == stages}
        for shift, (order, found) in zip((-0.2, 0.2), series.items(), strict=True):
            places = [names.index(name) + shift for name in found]
            axis.bar(places, list(found.values()), width=0.38, label=f"{order} order")
        for number, name in enumerate(names):
            label = "causal bound" if number == 0 else None
            axis.hlines(bound[name], number - 0.42, number + 0.42, colors="black", label=label)
        axis.set_xticks(range(len(names)), names, rotation=45)
        axis.set_title(f"{stages} stages")
    axes[0].set_ylabel("bubble ratio")
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Simulate what is missing, then write the averages and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--spaces", nargs="+", default=list(search_spaces.names()))
    parser.add_argument("--directory", type=Path, default=ROOT / "artifacts/schedules")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    kept = arguments.directory / "schedules.json"
    rows: list[dict[str, Any]] = json.loads(kept.read_text())["runs"] if kept.exists() else []
    done = {tuple(row[field] for field in FIELDS) for row in rows}
    for case in cases(arguments):
        if case in done:
            continue
        rows.append(measure(case, arguments.steps))
        print(*case, {k: round(rows[-1][k], 3) for k in ("bubble", "steady_bound")}, flush=True)
        settings = {"steps": arguments.steps, "known": KNOWN, "window": KNOWN}
        kept.write_text(json.dumps({**settings, "runs": rows}, indent=0) + "\n")
    means = averages(rows)
    with (arguments.directory / "schedules.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, means[0])
        writer.writeheader()
        writer.writerows(means)
    draw(means, arguments.directory / "schedules.png")


if __name__ == "__main__":
    main()
