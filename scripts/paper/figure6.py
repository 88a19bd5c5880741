"""Figure 6: naspipe without its scheduler, its predictor or mirroring; simulated and real."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import search_spaces
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars, mean, real_run
from scripts.paper.systems import (
    NASPIPE,
    averaged,
    batch_of,
    samples_per_second,
)

STEPS, REAL_STEPS = 200, 60
VARIANTS = {
    "naspipe": NASPIPE,
    "without scheduler": replace(NASPIPE, policy="sequential"),
    "without predictor": replace(NASPIPE, prefetch=False),
    "without swapping": replace(NASPIPE, budget="", memory="gpipe"),
    "without mirroring": replace(NASPIPE, partition="static"),
}
REAL: dict[str, dict[str, Any]] = {
    "naspipe": {"execution": {"memory_budget": "3x"}},
    "without scheduler": {"policy": "sequential", "execution": {"memory_budget": "3x"}},
    "without predictor": {"execution": {"memory_budget": "3x", "prefetch": False}},
    "without mirroring": {"execution": {"memory_budget": "3x", "partition": "static"}},
}


def run(options: Options) -> Result:
    """Every space on the virtual clock; one tiny space for real."""
    stages = (options.stages or (4,))[0]
    rows = [
        simulated(space, name, stages, options)
        for space in options.spaces or search_spaces.names()
        for name in VARIANTS
    ]
    if options.is_real:
        rows += real((options.spaces or ("nlp.c3",))[0], options)
    return Result(
        experiment="figure6",
        title=f"Figure 6: ablation, {stages} stages simulated, 2 real",
        kind="simulated and real" if options.is_real else "simulated",
        rows=rows,
        headlines=[headline(rows, name) for name in VARIANTS if name != "naspipe"],
        differs=(
            "Table 5's costs, no shared layers; the paper's 'without predictor' holds the whole "
            "supernet on the GPUs and pays with the batch of GPipe: that is 'without swapping' "
            "here, and 'without predictor' loads each layer when it is needed; samples per second "
            "with that batch as in figure5; real runs train the shared layers too (an exact head), "
            "on an emulated device with 3 subnets of memory, on two shared cores"
        ),
        settings={"steps": options.steps or STEPS, "seeds": options.seeds, "sampler": "uniform"},
    )


def simulated(space: str, name: str, stages: int, options: Options) -> dict[str, Any]:
    """One variant on the virtual clock."""
    system = VARIANTS[name]
    found = averaged(system, space, stages, options.steps or STEPS, options.seeds)
    batch = batch_of(system, space, 8)
    return {
        "space": space,
        "kind": "simulated",
        "variant": name,
        "stages": stages,
        "bubble": found["bubble"],
        "hit_rate": found["hit_rate"],
        "stall": found["stall"],
        "steps_per_second": found["steps_per_second"],
        "batch": batch,
        "samples_per_second": samples_per_second(
            space, found["steps_per_second"], batch, published.BATCH_FIXED_SHARE
        ),
    }


def real(space: str, options: Options) -> list[dict[str, Any]]:
    """The variants in alternation on two stage processes; medians would need more time."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REAL}
    for _ in range(options.repetitions):
        for name, how in REAL.items():
            rows[name].append(
                real_run(
                    space=space,
                    scale=options.scale,
                    stages=2,
                    steps=options.steps or REAL_STEPS,
                    flows=True,
                    **how,
                )
            )
    return [
        {
            "space": space,
            "kind": "real",
            "variant": name,
            "stages": 2,
            "bubble": mean([run["bubble_ratio"] for run in runs]),
            "hit_rate": mean([run["hit_rate"] for run in runs]),
            "stall": mean([run["stall_ratio"] for run in runs]),
            "steps_per_second": mean([run["passes_per_second"] for run in runs]),
            "least_steps_per_second": min(run["passes_per_second"] for run in runs),
            "most_steps_per_second": max(run["passes_per_second"] for run in runs),
        }
        for name, runs in rows.items()
    ]


def headline(rows: list[dict[str, Any]], name: str) -> Headline:
    """How much of naspipe's speed is left, and the bubble, over all simulated spaces."""
    shares, bubbles = [], []
    for row in rows:
        if row["variant"] == name and row["kind"] == "simulated":
            whole = next(
                r for r in rows
                if (r["space"], r["kind"], r["variant"]) == (row["space"], "simulated", "naspipe")
            )  # fmt: skip
            shares.append(row["samples_per_second"] / whole["samples_per_second"])
            bubbles.append(row["bubble"])
    paper = {
        "without scheduler": f"bubble {published.WITHOUT_SCHEDULER_BUBBLE}",
        "without swapping": "'without predictor': the batch of GPipe",
        "without predictor": "-",
        "without mirroring": "slightly slower",
    }[name]
    return Headline(
        f"{name}: throughput of naspipe's; bubble",
        f"{min(shares):.2f} to {max(shares):.2f}; {min(bubbles):.2f} to {max(bubbles):.2f}",
        paper,
    )


def draw(result: Result, figure: Any) -> None:
    """Simulated throughput and bubble by space, and the real variants."""
    figure.set_size_inches(15, 4.4)
    rows = [row for row in result.rows if row["kind"] == "simulated"]
    measured = [row for row in result.rows if row["kind"] == "real"]
    axes = figure.subplots(1, 3 if measured else 2, width_ratios=[3, 3, 1][: 3 if measured else 2])
    spaces = list(dict.fromkeys(row["space"] for row in rows))
    lines = {(row["space"], row["variant"]): row for row in rows}
    for axis, name, title in (
        (axes[0], "samples_per_second", "throughput / naspipe's, simulated (no bar: does not fit)"),
        (axes[1], "bubble", "bubble ratio, simulated"),
    ):
        series: dict[str, list[float | None]] = {}
        for variant in VARIANTS:
            values = [lines[space, variant][name] for space in spaces]
            if name != "bubble":
                whole = [lines[space, "naspipe"][name] for space in spaces]
                values = [value / all_ for value, all_ in zip(values, whole, strict=True)]
            series[variant] = values
        grouped_bars(axis, spaces, series)
        axis.set_title(title)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=len(labels))
    if measured:
        speeds = [row["steps_per_second"] for row in measured]
        spread = [
            [s - row["least_steps_per_second"] for s, row in zip(speeds, measured, strict=True)],
            [row["most_steps_per_second"] - s for s, row in zip(speeds, measured, strict=True)],
        ]
        colours = [f"C{list(VARIANTS).index(row['variant'])}" for row in measured]
        axes[2].bar(range(len(speeds)), speeds, yerr=spread, color=colours)
        axes[2].set_xticks([])
        axes[2].set_title(f"steps/s, real,\n{measured[0]['space']} tiny, 2 stages")
