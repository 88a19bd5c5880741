"""The artifact's check: smaller spaces conflict more, so T(c0) > T(c1) > T(c2) > T(c3)."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from scripts.paper.common import Headline, Options, Result, real_run
from scripts.paper.systems import SimulatedSystem, averaged

SPACES = ("nlp.c0", "nlp.c1", "nlp.c2", "nlp.c3")
SIMULATED_STAGES, REAL_STAGES = 4, 2
STEPS, REAL_STEPS = 300, 100
ALL_RESIDENT = SimulatedSystem(label="naspipe", policy="csp", memory="naspipe")
STEADY_SHARE = 2
"""Real speeds are of the last 1 in 2 subnets: the first are slowed by the making of layers, of
which the largest space has four times as many as the smallest."""


def run(options: Options) -> Result:
    """Uniform sampling: four stages on the virtual clock, two for real."""
    spaces = options.spaces or SPACES
    rows = [simulated(space, options) for space in spaces]
    if options.is_real:
        rows += real(spaces, options)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    speeds = {kind: [r["steps_per_second"] for r in rows if r["kind"] == kind] for kind in kinds}
    falls = {kind: all(a > b for a, b in pairwise(values)) for kind, values in speeds.items()}
    return Result(
        experiment="throughput",
        title="Throughput, uniform sampling",
        kind=" and ".join(kinds),
        rows=rows,
        headlines=[
            Headline(
                f"T(c0) > T(c1) > T(c2) > T(c3), {kind}",
                in_words(speeds[kind], falls[kind]),
                "c0 > c1 > c2 > c3 on four GPUs",
            )
            for kind in kinds
        ],
        differs=(
            "simulated: Table 5's costs, no shared layers; real: tiny spaces on two CPU "
            "processes with trained shared layers, medians over repetitions in alternation, speed "
            "of the second half of the subnets; on two stages causality costs less than on four, "
            "so the speeds lie closer together"
        ),
        settings={"sampler": "uniform", "order": "paper", "repetitions": options.repetitions},
        holds=all(falls.values()),
    )


def in_words(values: list[float], falls: bool) -> str:
    """Speeds, and whether they fall as they should."""
    listed = [f"{value:.2f}" for value in values]
    said = " > ".join(listed) if falls else f"not so: {', '.join(listed)}"
    return f"{said} subnets/s"


def simulated(space: str, options: Options) -> dict[str, Any]:
    """On the virtual clock."""
    found = averaged(
        ALL_RESIDENT, space, SIMULATED_STAGES, options.steps or STEPS, options.seeds, order="paper"
    )
    return {
        "kind": "simulated",
        "space": space,
        "stages": SIMULATED_STAGES,
        "steps_per_second": found["steps_per_second"],
        "bubble": found["bubble"],
    }


def real(spaces: tuple[str, ...], options: Options) -> list[dict[str, Any]]:
    """In alternation, so that a slow moment of the machine hits all spaces alike."""
    found: dict[str, list[dict[str, Any]]] = {space: [] for space in spaces}
    for _ in range(options.repetitions):
        for space in spaces:
            found[space].append(
                real_run(
                    space=space, scale=options.scale, stages=REAL_STAGES, curve=True, flows=True,
                    steps=options.steps or REAL_STEPS, execution={"order": "paper"},
                )
            )  # fmt: skip
    return [
        {
            "kind": "real",
            "space": space,
            "stages": REAL_STAGES,
            "steps_per_second": statistics.median(map(steady_speed, runs)),
            "least": min(map(steady_speed, runs)),
            "most": max(map(steady_speed, runs)),
            "bubble": statistics.median(run["bubble_ratio"] for run in runs),
            "whole_run": statistics.median(run["passes_per_second"] for run in runs),
        }
        for space, runs in found.items()
    ]


def steady_speed(run: dict[str, Any]) -> float:
    """Subnets per second over the second half of a run, from the times of its losses."""
    times = sorted(run["seconds_of_loss"])
    half = len(times) // STEADY_SHARE
    return (len(times) - half) / (times[-1] - times[half - 1])


def draw(result: Result, figure: Any) -> None:
    """One bar per space, simulated and real."""
    kinds = list(dict.fromkeys(row["kind"] for row in result.rows))
    figure.set_size_inches(5 * len(kinds), 3.6)
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        rows = [row for row in result.rows if row["kind"] == kind]
        speeds = [row["steps_per_second"] for row in rows]
        spread = None
        if "least" in rows[0]:
            below = [row["steps_per_second"] - row["least"] for row in rows]
            spread = [below, [row["most"] - row["steps_per_second"] for row in rows]]
        axis.bar([row["space"] for row in rows], speeds, yerr=spread, color="C0")
        axis.set_title(f"subnets per second, {kind}, {rows[0]['stages']} stages")
