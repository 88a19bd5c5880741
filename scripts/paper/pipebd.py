"""Pipe-BD's Figure 4 and Table II by their shape: blockwise distillation, simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scripts.blockwise_costs import COSTS, BlockCost
from scripts.blockwise_simulated import Way, grouped, in_turn, step_of, with_barrier
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.table6 import span

STAGES = (2, 4)
OVERHEADS = (0.0, 0.2)
"""Part of a step's time that a smaller batch does not save."""
SYSTEMS = {
    "layerwise": "LS",
    "relayed": "TR",
    "decoupled": "TR + DPU",
    "grouped": "TR + DPU + AHD",
    "internal": "IR",
    "free": "free placement",
}
"""Columns, and what the paper calls them; the last one is naspipe's own."""
FULL = 0.03
"""The bubble that free placement may leave on four stages."""


def run(options: Options) -> Result:
    """Every workload, number of stages and overhead."""
    rows = [
        row_of(name, costs, stages, overhead)
        for name, costs in COSTS.items()
        if options.spaces is None or name in options.spaces
        for stages in options.stages or STAGES
        for overhead in OVERHEADS
    ]
    wrong = faults(rows)
    return Result(
        experiment="pipebd",
        title="Pipe-BD's Figure 4: speed over data parallelism, block after block",
        kind="simulated",
        rows=rows,
        headlines=headlines(rows, wrong),
        differs=DIFFERS,
        settings={"order": "paper", "window": Way(stages=1).window},
        extra={"published": published.PIPEBD},
        holds=not wrong,
    )


DIFFERS = (
    "a block costs its multiply-adds, a backward twice a forward; loading, messages and the "
    "optimizer take nothing. What a small batch costs more is one number, 0 or 0.2, for all. "
    "Absolute times are not predicted; the paper's four A6000 gain more, because small kernels "
    "fill them badly"
)


def row_of(name: str, costs: list[BlockCost], stages: int, overhead: float) -> dict[str, Any]:
    """Speeds over block after block, and bubbles."""
    way = Way(stages=stages, overhead=overhead)
    split = replace(way, placement="shared", passes=stages)
    whole = replace(way, overhead=0.0)
    found = {
        "layerwise": step_of(costs, replace(whole, placement="packed", is_relayed=False)),
        "relayed": with_barrier(costs, whole),
        "decoupled": step_of(costs, replace(whole, placement="pairs")),
        "grouped": grouped(costs, way),
        "internal": step_of(costs, split),
        "free": step_of(costs, whole),
    }
    first = in_turn(costs, split).step
    row: dict[str, Any] = {"workload": name, "stages": stages, "overhead": overhead}
    row |= {system: first / each.step for system, each in found.items()}
    row["ideal"] = first * stages
    return row | {f"{system}_bubble": found[system].bubble for system in ("decoupled", "free")}


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What of the shape is not so."""
    found = []
    for row in rows:
        name = f"{row['workload']}, {row['stages']} stages, overhead {row['overhead']:g}"
        if not row["relayed"] <= row["decoupled"] + 0.005 <= row["free"] + 0.01:
            found.append(f"{name}: a barrier, none, and free placement are not in this order")
        if row["stages"] == 4 and row["free_bubble"] > FULL:
            found.append(f"{name}: free placement leaves {row['free_bubble']:.3f}")
    return found


def headlines(rows: list[dict[str, Any]], wrong: list[str]) -> list[Headline]:
    """Gains over both baselines, the bubbles, and what does not hold."""
    most = max(row["stages"] for row in rows)
    some = [row for row in rows if row["stages"] == most]
    best = ("grouped", "free")
    over = {row["workload"]: max(row[way] for way in best) for row in some if row["overhead"]}
    paper = published.PIPEBD
    found = [
        Headline(
            f"over data parallelism, {most} stages, overhead 0.2",
            span(over.values()),
            f"4 GPUs: {span(each for each, _ in paper.values())}",
        ),
        Headline(
            f"over layerwise scheduling, {most} stages",
            span(max(row[way] for way in best) / row["layerwise"] for row in some),
            f"4 GPUs: {span(each for _, each in paper.values())}",
        ),
        Headline(
            f"bubble, consecutive pairs and free placement, {most} stages",
            f"{span(row['decoupled_bubble'] for row in some)}; "
            f"{span(row['free_bubble'] for row in some)}",
            "-",
        ),
    ]
    return found + ([Headline("not so", "; ".join(wrong), "-")] if wrong else [])


def draw(result: Result, figure: Any) -> None:
    """Each workload on the most stages, by who computes what."""
    figure.set_size_inches(11, 4.5)
    axes = figure.subplots()
    most = max(row["stages"] for row in result.rows)
    some = [row for row in result.rows if row["stages"] == most]
    names = [f"{row['workload']}\noverhead {row['overhead']:g}" for row in some]
    bars = {label: [row[system] for row in some] for system, label in SYSTEMS.items()}
    grouped_bars(axes, names, bars)
    axes.axhline(1, color="black", lw=0.8)
    axes.set_title(f"speed over block after block, data-parallel, on {most} stages")
    axes.legend(fontsize="small", ncols=6, loc="upper left")
    axes.tick_params(axis="x", labelsize=7)
