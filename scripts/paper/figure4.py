"""Figure 4: convergence of four systems on two real data sets; real training on two stages.

And of naspipe without its lagging layers, which the paper does not have.
"""

from __future__ import annotations

from typing import Any

from scripts.paper.common import Headline, Options, Result, mean, real_run

STEPS = {"nlp.c3": 240, "cv.c3": 300}
SYSTEMS: dict[str, dict[str, Any]] = {
    "naspipe": {"policy": "csp"},
    "naspipe, no lag": {"policy": "csp", "rule": "exact"},
    "gpipe": {"policy": "bsp"},
    "pipedream": {"policy": "asp"},
    "vpipe": {"policy": "bsp", "execution": {"memory_budget": "2x", "prefetch": False}},
}
SMOOTHING = 20


def run(options: Options) -> Result:
    """Train each space under each system; the batch is the same for all."""
    spaces = options.spaces or tuple(STEPS)
    stages = (options.stages or (2,))[0]
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    for space in spaces:
        for system, how in SYSTEMS.items():
            found = real_run(
                space=space, scale=options.scale, stages=stages, curve=True,
                steps=options.steps or STEPS.get(space, 200), **how,
            )  # fmt: skip
            tail = found["losses"][-SMOOTHING:]
            rows.append(
                {
                    "space": space,
                    "system": system,
                    "stages": stages,
                    "steps": len(found["losses"]),
                    "seconds": found["seconds"],
                    "steps_per_second": found["steps_per_second"],
                    f"mean_of_last_{SMOOTHING}": mean(tail),
                    "bubble": found["bubble_ratio"],
                    "hit_rate": found["hit_rate"],
                }
            )
            curves[f"{space} {system}"] = {
                "losses": found["losses"],
                "seconds": found["seconds_of_loss"],
            }
    return Result(
        experiment="figure4",
        title=f"Figure 4: convergence, {stages} stages",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{row['space']}, {row['system']}: loss after {row['steps']} steps",
                f"{row[f'mean_of_last_{SMOOTHING}']:.3f} in {row['seconds']:.0f} s",
                "a curve; naspipe lowest or equal",
            )
            for row in rows
        ],
        differs=(
            "tiny spaces, LibreOffice's help (English to German) and Fashion-MNIST instead of WMT "
            "and ImageNet, a few hundred steps, two CPU processes; every system has the same "
            "batch, while the paper's GPipe and PipeDream have smaller ones for lack of memory; "
            "naspipe trains the shared front layers with lag(8), which the others do not know: in "
            "so few steps that costs more than their stale weights do; without lag it is slower, "
            "because the first stage waits for each subnet's end; "
            "vpipe trains what gpipe trains, and swaps on an emulated device"
        ),
        settings={"scale": options.scale, "stages": stages, "sampler": "uniform"},
        extra={"curves": curves},
    )


def smoothed(values: list[float]) -> list[float]:
    """Means of the last few values."""
    return [mean(values[max(0, n + 1 - SMOOTHING) : n + 1]) for n in range(len(values))]


def draw(result: Result, figure: Any) -> None:
    """Loss over steps and over time; a row of axes per space."""
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    figure.set_size_inches(11, 3.8 * len(spaces))
    axes = figure.subplots(len(spaces), 2, squeeze=False)
    styles = {"vpipe": "--", "naspipe, no lag": ":"}
    for space, (over_steps, over_time) in zip(spaces, axes, strict=True):
        for system in SYSTEMS:
            curve = result.extra["curves"][f"{space} {system}"]
            losses, style = smoothed(curve["losses"]), styles.get(system, "-")
            over_steps.plot(losses, style, label=system)
            pairs = sorted(zip(curve["seconds"], losses, strict=True))
            over_time.plot([x for x, _ in pairs], [y for _, y in pairs], style, label=system)
        over_steps.set_ylabel(f"{space}: loss, mean of {SMOOTHING} steps")
        over_steps.set_xlabel("steps")
        over_time.set_xlabel("seconds")
        over_steps.legend(fontsize="small")
