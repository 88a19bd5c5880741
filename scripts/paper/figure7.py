"""Figure 7: how the use of all stages grows with their number; simulated."""

from __future__ import annotations

from typing import Any

import search_spaces
from scripts.paper.common import Headline, Options, Result, mean
from scripts.paper.systems import SimulatedSystem, scenario_of, simulate_system

STEPS = 200
COUNTS = (1, 2, 4, 8, 16, 32, 48)
ALL_RESIDENT = SimulatedSystem(label="naspipe", policy="csp", memory="naspipe")
PAPER = {
    "nlp.c1": "3.9 of 8 (Table 2)", "nlp.c2": "2.8 of 8", "nlp.c3": "2.0 of 8",
    "cv.c1": "3.5 of 8", "cv.c2": "2.6 of 8", "cv.c3": "2.0 of 8",
}  # fmt: skip


def run(options: Options) -> Result:
    """Uniform sampling, and one that spaces its choices, to one block per stage."""
    steps = options.steps or STEPS
    rows: list[dict[str, Any]] = []
    for space in options.spaces or search_spaces.names():
        chain = scenario_of(space).space
        for stages in options.stages or COUNTS:
            if stages > len(chain):
                continue
            most = min(chain.candidate_counts) - 1
            for kind, sampler in (
                ("uniform", "uniform"),
                ("spaced", f"spaced:{min(2 * stages, most)}"),
            ):
                rows.append(row_of(space, stages, kind, sampler, steps, options.seeds))
    for row in rows:
        one = next(
            (r for r in rows if (r["space"], r["kind"], r["stages"]) == (row["space"], row["kind"],
             1)), None)  # fmt: skip
        row["speed_over_one_stage"] = (
            row["steps_per_second"] / one["steps_per_second"] if one else None
        )
    return Result(
        experiment="figure7",
        title="Figure 7: busy stages by their number",
        kind="simulated",
        rows=rows,
        headlines=[headline(rows, space) for space in dict.fromkeys(row["space"] for row in rows)],
        differs=(
            "busy stages are stages times (1 - bubble), with no account of how well a busy GPU is "
            "used (the paper's figures are the GPUs' own counters, 0.8 when busy); Table 5's "
            "costs, no time for messages, all layers resident, the faster of two dispatch orders; "
            "uniform sampling stops where causality does, spaced goes on"
        ),
        settings={"steps": steps, "seeds": options.seeds, "order": "auto"},
    )


def row_of(
    space: str, stages: int, kind: str, sampler: str, steps: int, seeds: int
) -> dict[str, Any]:
    """One point of a curve."""
    found = [
        simulate_system(
            ALL_RESIDENT, space, stages, steps, seed, sampler=sampler, order="auto",
            window=max(32, 2 * stages),
        )
        for seed in range(seeds)
    ]  # fmt: skip
    bubble = mean([each["bubble"] for each in found])
    return {
        "space": space,
        "kind": kind,
        "sampler": sampler,
        "stages": stages,
        "bubble": bubble,
        "causal_bound": mean([each["bound"] for each in found]),
        "busy_stages": stages * (1 - bubble),
        "steps_per_second": mean([each["steps_per_second"] for each in found]),
        "paper": PAPER.get(space) if (kind, stages) == ("uniform", 8) else None,
    }


def headline(rows: list[dict[str, Any]], space: str) -> Headline:
    """Busy stages at some numbers of them."""

    def listed(kind: str) -> str:
        mine = [row for row in rows if (row["space"], row["kind"]) == (space, kind)]
        return ", ".join(f"{r['busy_stages']:.1f} of {r['stages']}" for r in mine)

    text = f"uniform {listed('uniform')}; spaced {listed('spaced')}"
    return Headline(f"{space}, busy stages", text, PAPER.get(space, "-"))


def draw(result: Result, figure: Any) -> None:
    """Busy stages over stages; the dotted line is every stage busy."""
    figure.set_size_inches(12, 4.6)
    axes = figure.subplots(1, 2)
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    for axis, kind in zip(axes, ("uniform", "spaced"), strict=True):
        for space in spaces:
            mine = [row for row in result.rows if (row["space"], row["kind"]) == (space, kind)]
            axis.plot(
                [row["stages"] for row in mine], [row["busy_stages"] for row in mine],
                marker="o", label=space,
            )  # fmt: skip
        counts = sorted({row["stages"] for row in result.rows})
        axis.plot(counts, counts, ":", color="black", label="all busy")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, map(str, counts))
        axis.set_xlabel("stages")
        axis.set_title(f"{kind} sampling")
        if kind == "uniform":
            axis.set_ylim(0, 6)
    axes[0].set_ylabel("busy stages")
    axes[1].legend(fontsize="small")
