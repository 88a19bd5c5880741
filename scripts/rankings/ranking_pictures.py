"""Pictures of the figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from scripts.rankings import variants

WAY = "calibration 4"
SHOWN = ("loss", "top1", "loss+naswot")
LINES = {"noise_ceiling": "--", "by_convolutions": ":", "by_naswot": "-."}
"""What supernets are beside: figures of networks alone, and how their lines are drawn."""
COLOURS = dict(
    zip(
        variants.VARIANTS,
        pyplot.get_cmap("tab20").colors[::2] + pyplot.get_cmap("tab20").colors[1::2],
        strict=False,
    )
)


def draw_all(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every picture that there are figures for."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, alone = figures["supernets"], figures["alone"]
    drawn = []
    if rows and "loss" in alone:
        drawn += [draw_taus(rows, alone, folder / "taus.png")]
        if shown := longest_of_policies(rows):
            drawn += [draw_scatter(shown, alone, folder / "scatter.png")]
    if rows:
        drawn.append(draw_curves(rows, folder / "curves.png"))
    if figures["found"]:
        drawn.append(draw_found(figures["found"], alone, folder / "found.png"))
    return drawn


def draw_taus(rows: Sequence[Mapping[str, Any]], alone: Mapping[str, Any], path: Path) -> Path:
    """Tau over passes; each variant's mean over seeds, with the mean interval of its supernets."""
    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(15, 4.4), sharey=True)
    for axis, score in zip(axes, SHOWN, strict=True):
        for place, name in enumerate(variants.VARIANTS):
            points = by_length(rows, name, score)
            if points:
                x = [passes * 1.02**place for passes in points]
                middle = [statistics.mean(j["tau"] for j in each) for each in points.values()]
                errors = [bars(each, m) for each, m in zip(points.values(), middle, strict=True)]
                axis.errorbar(
                    x, middle, yerr=list(zip(*errors, strict=True)), label=name, marker="o", ms=4,
                    lw=1, elinewidth=0.6, color=COLOURS[name],
                )  # fmt: skip
        known = alone.get(score, alone["loss"])
        for key, style in LINES.items():
            if known.get(key):
                label = key.replace("_", " ")
                axis.axhline(known[key]["tau"], color="black", ls=style, lw=1, label=label)
        axis.set(xscale="log", xlabel="passes of the supernet", title=f"by {score}")
        lengths = sorted({row["passes"] for row in rows})
        axis.set_xticks(lengths, [f"{passes:,}" for passes in lengths])
        axis.minorticks_off()
        axis.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.5)
    axes[0].set_ylabel("Kendall's tau with networks alone")
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return saved(figure, path)


def by_length(
    rows: Sequence[Mapping[str, Any]], name: str, score: str
) -> dict[int, list[Mapping[str, Any]]]:
    """Of a variant, what its supernets of each length have by a score."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["name"] == name and score in row["judged"].get(WAY, {}):
            found.setdefault(row["passes"], []).append(row["judged"][WAY][score])
    return dict(sorted(found.items()))


def bars(judged: Sequence[Mapping[str, Any]], middle: float) -> tuple[float, float]:
    """From the mean down and up to the ends of the mean interval."""
    low = statistics.mean(each["tau_90"][0] for each in judged)
    high = statistics.mean(each["tau_90"][1] for each in judged)
    return max(0.0, middle - low), max(0.0, high - middle)


def longest_of_policies(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each policy the longest supernet that was judged, of the first of its seeds."""
    judged = [row for row in rows if WAY in row["judged"]]
    found = {row["name"]: row for row in sorted(judged, key=lambda r: (r["passes"], -r["seed"]))}
    return [found[name] for name in (variants.BASE, *variants.POLICIES) if name in found]


def draw_scatter(shown: Sequence[Mapping[str, Any]], alone: Mapping[str, Any], path: Path) -> Path:
    """Inherited loss against loss alone, of some supernets; colours count convolutions."""
    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(4 * len(shown), 3.8), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    reached = [statistics.mean(row["loss"]) for row in alone["networks"]]
    counts = [row["convolutions"] for row in alone["networks"]]
    for axis, row in zip(axes[0], shown, strict=True):
        judged = row["judged"][WAY]["loss"]
        dots = axis.scatter(judged["inherited"], reached, c=counts, cmap="viridis", s=18)
        title = f"{row['name']}, {row['passes']} passes\ntau {judged['tau']:+.2f}"
        axis.set(xlabel="inherited loss", title=title)
        axis.title.set_fontsize(9)
    figure.supylabel("loss alone", fontsize=9)
    figure.colorbar(dots, ax=axes, label="convolutions")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def draw_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Losses of the supernets of each policy over passes, of each length the first seed."""
    policies = (variants.BASE, *variants.POLICIES)
    shown = [row for row in rows if row["seed"] == 1 and row["name"] in policies] or rows[:1]
    lengths = sorted({row["passes"] for row in shown})
    figure, axes = pyplot.subplots(1, len(lengths), figsize=(4 * len(lengths), 3.6), squeeze=False)
    for axis, passes in zip(axes[0], lengths, strict=True):
        for row in (row for row in shown if row["passes"] == passes):
            curve = smooth(row.get("curve", []), 10)
            x = [passes * (n + 1) / len(curve) for n in range(len(curve))]
            axis.plot(x, curve, lw=1.2, label=row["name"], color=COLOURS[row["name"]])
        axis.set(xlabel="passes", title=f"{passes} passes")
    axes[0][0].set_ylabel("loss of subnets in training")
    axes[0][-1].legend(fontsize=7)
    return saved(figure, path)


def smooth(values: Sequence[float], span: int) -> list[float]:
    """Means of a value and those before it."""
    return [statistics.mean(values[max(0, n - span + 1) : n + 1]) for n in range(len(values))]


def draw_found(found: Sequence[Mapping[str, Any]], alone: Mapping[str, Any], path: Path) -> Path:
    """Top-1 of what each search found, with random networks' mean and spread."""
    names = list(dict.fromkeys(row["how"] for row in found))
    figure, axis = pyplot.subplots(figsize=(6.4, 3.8))
    mean, spread = (100 * alone["top1"][f"random_{key}"] for key in ("mean", "spread"))
    axis.axvspan(mean - spread, mean + spread, color="lightgrey", label="random, one spread")
    axis.axvline(mean, color="grey", lw=1)
    best = max(statistics.mean(row["top1"]) for row in alone["networks"])
    axis.axvline(100 * best, color="black", ls="--", lw=1, label="best of the sample")
    for row in found:
        axis.plot(100 * row["top1"], names.index(row["how"]), "o", color="#4477aa", ms=5)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("top-1 alone, %, a dot for each seed of the search")
    axis.legend(fontsize=7)
    return saved(figure, path)


def saved(figure: Any, path: Path) -> Path:
    """Write a picture."""
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
