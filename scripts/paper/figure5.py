"""Figure 5: throughput of four systems in the seven spaces; simulated."""

from __future__ import annotations

from typing import Any

import search_spaces
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.systems import (
    FULL_BATCH,
    SYSTEMS,
    averaged,
    batch_of,
    family_of,
    samples_per_second,
)

STEPS = 200
GPUS = 8
"""Whose memory decides the batch, as in the paper."""


def run(options: Options) -> Result:
    """Samples per second at each system's batch, under two assumptions; and at equal batches."""
    spaces = options.spaces or search_spaces.names()
    stages, steps = (options.stages or (4,))[0], options.steps or STEPS
    rows: list[dict[str, Any]] = []
    for space in spaces:
        full = FULL_BATCH[family_of(space)]
        for system in SYSTEMS:
            found = averaged(system, space, stages, steps, options.seeds)
            speed, batch = found["steps_per_second"], batch_of(system, space, GPUS)
            rows.append(
                {
                    "space": space,
                    "system": system.label,
                    "stages": stages,
                    "batch": batch,
                    "bubble": found["bubble"],
                    "samples_per_second_equal_batch": speed * full,
                    "samples_per_second": samples_per_second(
                        space, speed, batch, published.BATCH_FIXED_SHARE
                    ),
                }
            )
    compare(rows)
    return Result(
        experiment="figure5",
        title=f"Figure 5: throughput, {stages} stages",
        kind="simulated",
        rows=rows,
        headlines=[headline(rows, name) for name in published.SPEEDUPS],
        differs=(
            "costs are Table 5's, of one batch; a smaller batch saves only "
            f"{1 - published.BATCH_FIXED_SHARE:.0%} of a step's time in proportion, which is what "
            "the paper's own figures for batches 192, 32 and 16 say; batches are those that our "
            "memory model admits on 8 GPUs of 11 GB, 0 where the system does not fit at all; "
            "uniform sampling and the paper's order"
        ),
        settings={"steps": steps, "seeds": options.seeds, "stages": stages, "sampler": "uniform"},
    )


def compare(rows: list[dict[str, Any]]) -> None:
    """Add to each row how many times faster naspipe is; None where the other does not run."""
    for row in rows:
        ours = next(r for r in rows if r["space"] == row["space"] and r["system"] == "naspipe")
        for name in ("samples_per_second", "samples_per_second_equal_batch"):
            both = row[name] and ours[name]
            row[name.replace("samples_per_second", "naspipe_over_it")] = (
                ours[name] / row[name] if both else None
            )


def headline(rows: list[dict[str, Any]], system: str) -> Headline:
    """The range of naspipe's speed over a system's."""
    mine = [row for row in rows if row["system"] == system]
    own = [row["naspipe_over_it"] for row in mine if row["naspipe_over_it"]]
    equal = [row["naspipe_over_it_equal_batch"] for row in mine]
    unfit = [row["space"] for row in mine if not row["batch"]]
    text = f"{min(own):.2f} to {max(own):.2f}" if own else "fits nowhere"
    text += f" with {', '.join(unfit)} not fitting" if unfit and own else ""
    return Headline(
        f"naspipe over {system}, samples per second",
        f"{text}; at equal batches {min(equal):.2f} to {max(equal):.2f}",
        published.SPEEDUPS[system],
    )


def draw(result: Result, figure: Any) -> None:
    """Relative to naspipe: at each system's own batch, and at equal batches."""
    figure.set_size_inches(13, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    lines = {(row["space"], row["system"]): row for row in result.rows}
    for axis, name, title in (
        (axes[0], "samples_per_second", "each system at the batch that it can hold"),
        (axes[1], "samples_per_second_equal_batch", "all at the same batch"),
    ):
        series: dict[str, list[float | None]] = {
            system.label: [
                lines[space, system.label][name] / lines[space, "naspipe"][name] for space in spaces
            ]
            for system in SYSTEMS
        }
        grouped_bars(axis, spaces, series)
        axis.set_title(title)
        _name_the_unfit(axis, spaces, series)
    axes[0].set_ylabel("throughput / naspipe's")
    axes[0].legend(fontsize="small")


def _name_the_unfit(axis: Any, spaces: list[str], series: dict[str, list[float | None]]) -> None:
    """Where a bar would stand of a system that cannot hold the space."""
    width = 0.84 / len(series)
    for place, values in enumerate(series.values()):
        for number in range(len(spaces)):
            if values[number] == 0:
                x = number + (place - (len(series) - 1) / 2) * width
                axis.text(x, 0.02, "does not fit", rotation=90, ha="center", fontsize=7)
