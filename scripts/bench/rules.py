"""What it costs that the shared layers in front are read late, and what remedies win back.

    scripts/bench rules --spaces cv.c3 --rules exact "lag(3)" "lag(3,predict)" --seeds 0 1 2

Each rule is given to the layers that lag by default. Losses are those of real runs on one stage:
those of any number of stages are the same, bit for bit. What is already in the output file is not
trained again. Writes artifacts/rules/prices.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from naspipe.api.chosen_stages import with_late
from naspipe.api.simulate import profiled_scenario
from naspipe.config.execution import Execution
from naspipe.config.rules import Every, Lag, parse_rule
from naspipe.inputs.named import find_workload
from naspipe.machine.determinism import describe_environment
from scripts.bench.common import ROOT
from scripts.paper.common import COLOURS, draw_to, real_run
from scripts.tiny_workload import tiny_workload

SPACES = ("cv.c3", "nlp.c3", "nasbench201")
LAGS = ("exact", *(f"lag({k})" for k in (1, 2, 3, 4, 8, 16)))
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "sgd": {"optimizer": "SGD", "lr": 0.1, "options": {"momentum": 0.9}},
    "adam": {"optimizer": "Adam", "lr": 1e-3, "options": {}},
}
OWN: dict[str, dict[str, Any]] = {
    "nasbench201": {
        "space": "scripts.nasbench201:space", "data": "scripts.nasbench201:data",
        "optimizer": "SGD", "lr": 0.05, "options": {"momentum": 0.9},
        "recipe": {"norms": "deferred"},
    }
}  # fmt: skip
STAGES = (1, 2, 4, 8)
SAMPLERS = ("uniform", "spaced:8")
BACKWARDS = ("whole", "split")
SIMULATED = 200
"""Steps of a simulation."""
GRAIN = 25
"""Steps of which the mean is kept."""
TAIL = 100
"""Steps at the end of a run whose mean loss is its result."""

Key = tuple[str, str, str, str, int, int]
"""Space, sampler, optimizer, rule, steps and seed."""


def key_of(row: dict[str, Any]) -> Key:
    """What a run is told apart by."""
    return (
        row["space"], row["sampler"], row["optimizer"], row["rule"], row["steps"], row["seed"]
    )  # fmt: skip


def kept(path: Path) -> dict[str, Any]:
    """What was found so far."""
    if not path.exists():
        return {"rows": [], "rates": []}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def trained(key: Key) -> dict[str, Any]:
    """One run, in a process of its own; its bits are those of a kind of processor."""
    space, sampler, optimizer, rule, steps, seed = key
    how = {**OWN.get(space, {"space": space}), **OPTIMIZERS[optimizer]}
    found = real_run(rule=rule, sampler=sampler, seed=seed, steps=steps, stages=1, **how)
    losses = found["losses"]
    means = [statistics.fmean(losses[n : n + GRAIN]) for n in range(0, steps, GRAIN)]
    return {
        "space": space, "sampler": sampler, "optimizer": optimizer, "rule": rule,
        "seed": seed, "steps": steps, "cpu": describe_environment()["hardware"]["cpu_capability"],
        "end": statistics.fmean(losses[-TAIL:]), "means": [round(mean, 5) for mean in means],
    }  # fmt: skip


def rates_of(space: str, rules: Sequence[str]) -> list[dict[str, Any]]:
    """Steps per second of each rule and backward, simulated with costs profiled here."""
    named = OWN.get(space, {"space": space})
    if "data" not in named:
        workload = tiny_workload(space)
    else:
        workload = find_workload(named["space"], "tiny", named["data"], None)
    rows = []
    for sampler, stages, backward in itertools.product(SAMPLERS, STAGES, BACKWARDS):
        execution = Execution(stages=stages).changed(backward=backward)
        known = profiled_scenario(workload, execution)
        for rule in sorted({as_fast_as(rule) for rule in rules}):
            scenario = with_late(known, parse_rule(rule))
            run = scenario.run(scenario.pipeline(sampler, 0, SIMULATED), execution)
            speed = run.summary.passes_per_second
            rows.append(
                {
                    "space": space, "sampler": sampler, "stages": stages, "rule": rule,
                    "backward": backward, "steps_per_second": speed,
                }
            )  # fmt: skip
    return rows


def as_fast_as(rule: str) -> str:
    """The rule that is as late, and steps as others do."""
    parsed = parse_rule(rule)
    if isinstance(parsed, Lag):
        return str(replace(parsed, momentum=None, lr=1.0, predicts=False))
    return str(replace(parsed, momentum=None, lr=1.0) if isinstance(parsed, Every) else parsed)


def prices_of(rows: Sequence[dict[str, Any]], rule: str) -> list[float]:
    """Of one space, sampler, optimizer and number of steps: over ``exact`` of the same seed."""
    exact = {row["seed"]: row["end"] for row in rows if row["rule"] == "exact"}
    own = [row for row in rows if row["rule"] == rule and row["seed"] in exact]
    return [row["end"] / exact[row["seed"]] - 1.0 for row in own]


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """End losses beside those of ``exact`` with the same seeds."""
    table = Table(
        "space", "sampler", "optimizer", "rule", "seeds", "loss", "over exact", box=SIMPLE_HEAD
    )

    def case(row: dict[str, Any]) -> tuple[Any, ...]:
        return (*key_of(row)[:3], row["steps"])

    for given, group in itertools.groupby(sorted(rows, key=case), key=case):
        mine = list(group)
        for rule in sorted({row["rule"] for row in mine}):
            ends = [row["end"] for row in mine if row["rule"] == rule]
            over, shown = prices_of(mine, rule), ""
            if over:
                shown = f"{statistics.fmean(over):+.1%} ({min(over):+.1%} to {max(over):+.1%})"
            table.add_row(*given[:3], rule, str(len(ends)), f"{statistics.fmean(ends):.4f}", shown)
    return table


def draw(rows: Sequence[dict[str, Any]], rates: Sequence[dict[str, Any]], figure: Any) -> None:
    """One space: prices over K, then losses over steps and over seconds, a line for each rule.

    A price's bar reaches from the least seed to the most; a loss is the mean of the seeds and of
    the last ``TAIL`` steps.
    """
    speeds = {(each["stages"], each["rule"]): each["steps_per_second"] for each in rates}
    names = {
        0: "steps",
        **{n: f"seconds on {n} stages with split backwards, simulated" for n in (2, 4)},
    }
    panels = [n for n in names if not n or any(each == n for each, _ in speeds)]
    lines = (1 + len(panels)) // 2
    first, *axes = figure.subplots(lines, 2, squeeze=False).flat
    figure.set_size_inches(10, 3.8 * lines)
    for rule in sorted({row["rule"] for row in rows}, key=order_of):
        late, colour, dashes = style_of(rule)
        if over := [100 * each for each in prices_of(rows, rule)]:
            middle = statistics.fmean(over)
            ends = [[middle - min(over)], [max(over) - middle]]
            first.errorbar(late, middle, ends, fmt="o" if dashes == "-" else "D", color=colour)
        seeds = [row["means"] for row in rows if row["rule"] == rule]
        tail = min(TAIL // GRAIN, *map(len, seeds))
        for axis, stages in zip(axes, panels, strict=True):
            if speed := speeds.get((stages, as_fast_as(rule))) if stages else 1.0:
                counts = range(tail, min(map(len, seeds)) + 1)
                losses = [
                    statistics.fmean(s for m in seeds for s in m[n - tail : n]) for n in counts
                ]
                axis.plot(
                    [GRAIN * n / speed for n in counts], losses, dashes, color=colour, label=rule
                )
    for axis, stages in zip(axes, panels, strict=True):
        axis.set_xlabel(names[stages])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:.3g}")
        axis.yaxis.set_minor_formatter("{x:.2g}")
    first.set_xlabel("K of lag(K), M of every(M)")
    first.set_ylabel("loss over that of exact, %")
    axes[0].set_ylabel(f"loss, mean of {TAIL} steps")
    axes[0].legend(fontsize="small")


def order_of(rule: str) -> tuple[int, str]:
    """How late, then by name."""
    return style_of(rule)[0], rule


def style_of(rule: str) -> tuple[int, str, str]:
    """How late it is, the colour that says so, and dashes where it makes up for that."""
    match parse_rule(rule):
        case Lag(late) as parsed:
            dashes = "-" if parsed == Lag(late) else "--"
        case Every(late):
            dashes = ":"
        case _:
            late, dashes = 0, "-"
    places = (1, 2, 3, 4, 8, 16)
    return late, ("#000000", *COLOURS)[sum(late >= place for place in places)], dashes


def main(words: Sequence[str] | None = None) -> int:
    """Train what is missing, two runs at a time; write, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["uniform"])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["default"])
    parser.add_argument("--rules", nargs="+", default=list(LAGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rates", action="store_true", help="simulate the speeds of all rules")
    parser.add_argument("--at-once", type=int, default=2, help="runs, each on a core")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/rules/prices.json")
    arguments = parser.parse_args(words)
    result = kept(arguments.output)
    rows: list[dict[str, Any]] = result["rows"]
    known = {key_of(row) for row in rows}
    wanted = itertools.product(
        arguments.spaces, arguments.samplers, arguments.optimizers, arguments.rules,
        [arguments.steps], arguments.seeds,
    )  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        jobs = [pool.submit(trained, key) for key in wanted if key not in known]
        for done in as_completed(jobs):
            result = kept(arguments.output)  # others may have added to it
            rows = sorted([*result["rows"], done.result()], key=key_of)
            result |= {"environment": describe_environment(), "rows": rows}
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")
            print(f"{len(rows)} runs", file=sys.stderr, flush=True)
    if arguments.rates:
        for space in arguments.spaces:
            rules = dict.fromkeys(row["rule"] for row in rows if row["space"] == space)
            found = rates_of(space, list(rules))
            result = kept(arguments.output)
            others = [each for each in result["rates"] if each["space"] != space]
            result["rates"] = [*others, *found]
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    cases = itertools.product(arguments.spaces, arguments.samplers, arguments.optimizers)
    for case in cases:
        space, sampler, optimizer = case
        if not (own := [row for row in rows if key_of(row)[:3] == case]):
            continue
        rates = [
            r for r in result["rates"]
            if (r["space"], r["sampler"], r.get("backward")) == (*case[:2], "split")
        ]  # fmt: skip
        path = arguments.output.parent / f"{space}-{sampler.replace(':', '')}-{optimizer}.png"
        draw_to(path, lambda figure, own=own, rates=rates: draw(own, rates, figure))
    shown = [row for row in rows if row["space"] in arguments.spaces]
    Console(highlight=False).print(table_of(shown))
    return 0
