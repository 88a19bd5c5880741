"""Figure 4: convergence of four systems on two real data sets; real training on two stages.

And of naspipe with layers in front that are never read late, which the paper does not have.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from scripts.paper.common import Headline, Options, Result, mean, real_run

STEPS = 1000
SEEDS = range(3)
SPACES = ("nlp.c3", "cv.c3")
SYSTEMS: dict[str, dict[str, Any]] = {
    "naspipe": {"policy": "csp"},
    "naspipe, exact": {"policy": "csp", "rule": "exact"},
    "gpipe": {"policy": "bsp"},
    "pipedream": {"policy": "asp"},
    "vpipe": {"policy": "bsp", "execution": {"memory_budget": "2x", "prefetch": False}},
}
SMOOTHING = 50


def run(options: Options) -> Result:
    """Train each space under each system with each seed; the batch is the same for all."""
    spaces, steps = options.spaces or SPACES, options.steps or STEPS
    stages, seeds = (options.stages or (2,))[0], SEEDS[: options.repetitions]
    rows: list[dict[str, Any]] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    for space, (system, how) in product(spaces, SYSTEMS.items()):
        job = {"space": space, "scale": options.scale, "stages": stages, "steps": steps, **how}
        found = [real_run(curve=True, seed=seed, **job) for seed in seeds]
        rows.append({"space": space, "system": system, "stages": stages, **figures_of(found)})
        curves[f"{space} {system}"] = [
            {"losses": each["losses"], "seconds": each["seconds_of_loss"]} for each in found
        ]
    for row in rows:
        seconds = min(each["seconds"] for each in rows if each["space"] == row["space"])
        row["at_seconds"] = seconds
        own = curves[f"{row['space']} {row['system']}"]
        row["loss_then"] = mean([loss_at(curve, seconds) for curve in own])
    return Result(
        experiment="figure4",
        title=f"Figure 4: convergence, {stages} stages, {len(seeds)} seeds",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{row['space']}, {row['system']}: mean loss at the end of {steps} steps; "
                f"after {row['at_seconds']:.0f} s",
                f"{row['loss']:.3f} ({row['least']:.3f} to {row['most']:.3f}) in "
                f"{row['seconds']:.0f} s; {row['loss_then']:.3f}",
                "a curve; naspipe lowest or equal",
            )
            for row in rows
        ],
        differs=(
            "tiny spaces, LibreOffice's help (English to German) and Fashion-MNIST instead of WMT "
            "and ImageNet, two CPU processes; every system has the same batch, while the paper's "
            "GPipe and PipeDream have smaller ones for lack of memory; naspipe reads the shared "
            "layers in front late, as the space's rules say, and exact does not: there the first "
            "stage waits for each subnet's end; vpipe trains what gpipe trains, and swaps on an "
            "emulated device"
        ),
        settings={"scale": options.scale, "stages": stages, "sampler": "uniform"},
        extra={"curves": curves},
    )


def figures_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one system's runs, which differ in their seeds."""
    ends = [mean(each["losses"][-SMOOTHING:]) for each in found]
    names = {"seconds": "seconds", "steps_per_second": "steps_per_second", "bubble": "bubble_ratio"}
    return {
        "steps": len(found[0]["losses"]),
        "loss": mean(ends),
        "least": min(ends),
        "most": max(ends),
        **{name: mean([each[key] for each in found]) for name, key in names.items()},
    }


def loss_at(curve: dict[str, Any], seconds: float) -> float:
    """Mean of the last losses that are there by then."""
    known = [
        loss
        for time, loss in sorted(zip(curve["seconds"], curve["losses"], strict=True))
        if time <= seconds
    ]
    return mean(known[-SMOOTHING:])


def smoothed(values: list[float]) -> list[float]:
    """Means of the last few values."""
    return [mean(values[max(0, n + 1 - SMOOTHING) : n + 1]) for n in range(len(values))]


def draw(result: Result, figure: Any) -> None:
    """Loss over steps and over time, a band from the least seed to the most; a row per space."""
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    figure.set_size_inches(11, 3.8 * len(spaces))
    axes = figure.subplots(len(spaces), 2, squeeze=False)
    styles = {"vpipe": "--", "naspipe, exact": ":"}
    for space, (over_steps, over_time) in zip(spaces, axes, strict=True):
        for system in SYSTEMS:
            curves = result.extra["curves"][f"{space} {system}"]
            losses = [smoothed(curve["losses"]) for curve in curves]
            times = [sorted(curve["seconds"]) for curve in curves]
            for axis, where in ((over_steps, None), (over_time, times)):
                _band(axis, where, losses, styles.get(system, "-"), system)
        over_steps.set_ylabel(f"{space}: loss, mean of {SMOOTHING} steps")
        over_steps.set_xlabel("steps")
        over_time.set_xlabel("seconds")
        over_steps.legend(fontsize="small")


def _band(
    axis: Any, times: list[list[float]] | None, losses: list[list[float]], style: str, label: str
) -> None:
    """One system: the mean of its seeds, and how far they are apart."""
    count = len(losses[0])
    middle = [mean([each[n] for each in losses]) for n in range(count)]
    where = [mean([each[n] for each in times]) for n in range(count)] if times else range(count)
    (line,) = axis.plot(where, middle, style, label=label)
    ends = [[end(each[n] for each in losses) for n in range(count)] for end in (min, max)]
    axis.fill_between(where, *ends, color=line.get_color(), alpha=0.15, linewidth=0)
