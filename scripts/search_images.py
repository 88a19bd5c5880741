"""cv.c3 tiny on Fashion-MNIST, end to end: train, search, export, retrain; and ranks.

Trains one supernet per policy and sampler, searches the first by evolution, exports the best
subnet, and trains it and random subnets alone. Says whether the found one beats the random ones'
mean, and how well each supernet's scores rank them (Kendall's tau). Figures and a picture go to
artifacts/search/images.*. What is in --work already is not done again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.export.assembly import find_choices  # noqa: E402
from naspipe.export.exporter import export_subnet  # noqa: E402
from naspipe.search.scores import interval, kendalls_tau  # noqa: E402
from scripts.search_common import (  # noqa: E402
    Bench,
    command,
    draw,
    keep,
    random_subnets,
)  # fmt: skip

SUPERNETS = {
    "csp uniform": ("csp", "uniform", 1),
    "csp fair": ("csp", "fair", 1),
    "csp spaced": ("csp", "spaced:4", 1),
    "bsp uniform": ("bsp", "uniform", 4),
    "asp uniform": ("asp", "uniform", 4),
}
"""Policy, sampler and stages: the baselines' results depend on the last."""


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="of a supernet")
    parser.add_argument("--alone", type=int, default=300, help="steps of a subnet alone")
    parser.add_argument("--subnets", type=int, default=20)
    parser.add_argument("--budget", type=int, default=150, help="of the search")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--validate", type=int, default=16, help="batches to judge inherited by")
    parser.add_argument("--test", type=int, default=64, help="batches to judge retrained by")
    parser.add_argument("--supernets", default=",".join(SUPERNETS), help="those to rank subnets by")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "search-images")
    options = parser.parse_args()
    bench = Bench("cv.c3", {"batch_size": options.batch}, options.work, {"schedule": "cosine"})
    judged = {"calibration": 4, "validation": options.validate}
    listed = random_subnets(bench.space, options.subnets, seed=7)
    first = bench.train("csp-uniform", options.steps, "uniform")
    bench.judge(
        first, "evolution", "valid", strategy="evolution", budget=options.budget, score="loss",
        **judged,
    )  # fmt: skip
    best = find_choices(first, "best")
    exported = options.work / "exported"
    if not exported.exists():
        export_subnet(first, best, exported, data=bench.named.data, calibrate=judged["calibration"])
    alone = [retrained(bench, options, f"alone-{n}", each) for n, each in enumerate(listed)]
    found = retrained(bench, options, "alone-found", best)
    supernets = {}
    for name in options.supernets.split(","):
        policy, sampler, stages = SUPERNETS[name]
        run = bench.train(name.replace(" ", "-"), options.steps, sampler, policy, stages)
        scores = bench.judge_listed(run, "listed", "valid", listed, **judged).candidates
        supernets[name] = rank_figures(scores, alone)
        print(f"{name}: tau {supernets[name]['tau']:.2f}", flush=True)
    result = {
        "command": command("scripts/search_images.py"),
        "settings": {key: str(value) for key, value in vars(options).items() if key != "work"},
        "found": {"choices": list(best), **found},
        "random": alone,
        "supernets": supernets,
        **headline(found, alone),
    }
    print(keep("images", result), draw("images", lambda axes: paint(axes, result), 2))
    print(result["headline"])


def retrained(bench: Bench, options: argparse.Namespace, name: str, choices: Any) -> dict[str, Any]:
    """What a subnet reaches alone, on the test split."""
    run = bench.train_alone(name, choices, options.alone)
    (scored,) = bench.judge_listed(
        run, "test", "test", [choices], calibration=0, validation=options.test
    ).candidates
    return {"loss": scored.scores.loss, "top1": scored.scores.top1, "params": scored.cost.params}


def rank_figures(scores: Any, alone: list[dict[str, Any]]) -> dict[str, Any]:
    """How a supernet's scores order the subnets, against what they reach alone."""
    inherited = [each.scores.loss for each in scores]
    reached = [each["loss"] for each in alone]
    return {
        "tau": kendalls_tau(inherited, reached),
        "tau_90": interval(inherited, reached, 0.9),
        "tau_top1": kendalls_tau([e.scores.top1 for e in scores], [e["top1"] for e in alone]),
        "loss": inherited,
        "top1": [each.scores.top1 for each in scores],
    }


def headline(found: dict[str, Any], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether the found subnet beats the random ones' mean."""
    top1, loss = ([each[key] for each in alone] for key in ("top1", "loss"))
    better = sum(found["top1"] > each for each in top1)
    spreads = (found["top1"] - statistics.mean(top1)) / statistics.stdev(top1)
    text = (
        f"found: {100 * found['top1']:.2f} % and loss {found['loss']:.4f} on the test split; "
        f"{len(alone)} random subnets: mean {100 * statistics.mean(top1):.2f} % and "
        f"{statistics.mean(loss):.4f}; it beats {better} of them and is {spreads:+.2f} "
        f"spreads from their mean"
    )
    return {
        "random_top1_mean": statistics.mean(top1),
        "random_top1_spread": statistics.stdev(top1),
        "random_loss_mean": statistics.mean(loss),
        "beats_mean": found["top1"] > statistics.mean(top1),
        "beats": better,
        "spreads_above_mean": spreads,
        "headline": text,
    }


def paint(axes: Any, result: dict[str, Any]) -> None:
    """Inherited against retrained, and the taus."""
    reached = [100 * each["top1"] for each in result["random"]]
    for name, figures in result["supernets"].items():
        axes[0].plot(figures["loss"], reached, "o", ms=4, label=name)
    axes[0].axhline(100 * result["found"]["top1"], color="black", lw=1, label="found by evolution")
    axes[0].axhline(100 * result["random_top1_mean"], color="grey", ls="--", lw=1, label="mean")
    axes[0].set(xlabel="loss with inherited weights", ylabel="top-1 trained alone, %")
    axes[0].legend(fontsize=6)
    names = list(result["supernets"])
    taus = [result["supernets"][name]["tau"] for name in names]
    low, high = zip(*(result["supernets"][name]["tau_90"] for name in names), strict=True)
    errors = [
        [max(0.0, t - a) for t, a in zip(taus, low, strict=True)],
        [max(0.0, b - t) for t, b in zip(taus, high, strict=True)],
    ]
    axes[1].barh(names, taus, xerr=errors, color="#4477aa", ecolor="grey")
    axes[1].axvline(0, color="black", lw=0.8)
    axes[1].set(xlabel="Kendall's tau (90 % of bootstrap)")
    axes[1].invert_yaxis()


if __name__ == "__main__":
    main()
