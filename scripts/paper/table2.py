"""Table 2: bubble, cache hits, batch and memory of four systems, simulated."""

from __future__ import annotations

from typing import Any

from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.systems import (
    NASPIPE,
    SYSTEMS,
    SimulatedSystem,
    averaged,
    batch_of,
    footprints,
    supernet_bytes,
)

STEPS = 200
PAPER_GPUS = 8


def run(options: Options) -> Result:
    """Every space, system and number of stages."""
    spaces = options.spaces or tuple(published.TABLE2)
    counts = options.stages or (4, PAPER_GPUS)
    steps = options.steps or STEPS
    rows = [
        row_of(space, system, stages, steps, options.seeds)
        for space in spaces
        for stages in counts
        for system in SYSTEMS
    ]
    return Result(
        experiment="table2",
        title="Table 2: bubble, cache hits, batch, memory",
        kind="simulated",
        rows=rows,
        headlines=[headline(rows, space, counts[0]) for space in spaces],
        differs=(
            "costs are Table 5's, a message takes no time, shared layers are left out as the "
            "paper's artifact freezes them; the paper's bubbles, said to be of 8 GPUs, agree with "
            "4 stages: at 8 its figure for NLP.c3 is below the causal bound; batches follow from "
            "our layers' bytes at its widths, and a part that does not fit has batch 0; a hit is a "
            "layer that was on the device when its execution could begin"
        ),
        settings={"steps": steps, "seeds": options.seeds, "order": "paper", "sampler": "uniform"},
    )


def row_of(
    space: str, system: SimulatedSystem, stages: int, steps: int, seeds: int
) -> dict[str, Any]:
    """One line; the paper's other systems are known for NLP.c1 alone."""
    found = averaged(system, space, stages, steps, seeds)
    supernet = supernet_bytes(space, 1)
    held = found["layer_bytes"] or supernet / stages
    row: dict[str, Any] = {
        "space": space,
        "stages": stages,
        "system": system.label,
        "bubble": found["bubble"],
        "causal_bound": found["bound"] if system is NASPIPE else None,
        "hit_rate": found["hit_rate"] if system.budget else None,
        "stall": found["stall"] if system.budget else None,
        "seconds_per_subnet": 1 / found["steps_per_second"],
        "batch": batch_of(system, space, PAPER_GPUS),
        "layers_gb_per_stage": held / 1e9,
        "host_gb": supernet / 1e9 if system.budget else 0.0,
        "parameters_billion": sum(
            row.parameter_bytes
            for block in range(len(footprints(space).twins))
            for row in footprints(space).candidates(block)
        )
        / 4e9,
    }
    return row | paper_of(space, system)


def paper_of(space: str, system: SimulatedSystem) -> dict[str, Any]:
    """The paper's figures of one line, where it has them."""
    if system is NASPIPE and space in published.TABLE2:
        line = published.TABLE2[space]
        return {
            "paper_bubble": line.bubble, "paper_hit_rate": line.hit_rate,
            "paper_batch": line.batch, "paper_seconds": line.seconds,
        }  # fmt: skip
    if space == "nlp.c1" and system.label in published.BASELINES:
        base = published.BASELINES[system.label]
        return {
            "paper_bubble": base.bubble, "paper_hit_rate": base.hit_rate,
            "paper_batch": base.batch, "paper_seconds": None,
        }  # fmt: skip
    return dict.fromkeys(("paper_bubble", "paper_hit_rate", "paper_batch", "paper_seconds"))


def headline(rows: list[dict[str, Any]], space: str, stages: int) -> Headline:
    """Of NASPipe's own line."""
    row = next(
        r for r in rows if (r["space"], r["stages"], r["system"]) == (space, stages, "naspipe")
    )
    paper = "-"
    if row["paper_bubble"] is not None:
        paper = f"bubble {row['paper_bubble']:.2f}, hit rate {row['paper_hit_rate']:.1%}"
    return Headline(
        f"{space}, {stages} stages",
        f"bubble {row['bubble']:.2f} (bound {row['causal_bound']:.2f}), "
        f"hit rate {row['hit_rate']:.1%}",
        paper,
    )


def draw(result: Result, figure: Any) -> None:
    """Bubbles of all systems, then hit rates of those that swap; the first number of stages."""
    figure.set_size_inches(12, 4.4)
    left, right = figure.subplots(1, 2)
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    stages = result.rows[0]["stages"]
    lines = {(r["space"], r["system"]): r for r in result.rows if r["stages"] == stages}
    series: dict[str, list[float | None]] = {
        system.label: [lines[space, system.label]["bubble"] for space in spaces]
        for system in SYSTEMS
    }
    series["the paper's naspipe"] = [lines[space, "naspipe"]["paper_bubble"] for space in spaces]
    grouped_bars(left, spaces, series)
    for number, space in enumerate(spaces):
        label = "causal bound" if number == 0 else None
        bound = lines[space, "naspipe"]["causal_bound"]
        left.hlines(bound, number - 0.42, number + 0.42, colors="black", label=label)
    left.set_title(f"bubble ratio, {stages} stages, simulated")
    left.set_ylim(0, 1)
    left.legend(fontsize="small", loc="upper left", ncols=3)
    hits: dict[str, list[float | None]] = {
        system.label: [lines[space, system.label]["hit_rate"] for space in spaces]
        for system in SYSTEMS
        if system.budget
    }
    hits["the paper's naspipe"] = [lines[space, "naspipe"]["paper_hit_rate"] for space in spaces]
    grouped_bars(right, spaces, hits)
    right.set_title("cache hit rate of the systems that swap")
    right.set_ylim(0, 1.25)
    right.legend(fontsize="small", loc="upper left", ncols=3)
