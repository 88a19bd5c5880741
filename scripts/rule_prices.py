"""What it costs that the shared layers in front are read late, and what remedies win back.

    scripts/rule_prices.py --spaces cv.c3 --rules exact "lag(3)" "lag(3,predict)" --seeds 0 1 2

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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from naspipe.core.config import Execution  # noqa: E402
from naspipe.core.rules import parse_rule  # noqa: E402
from naspipe.frontend.given.workloads import find_workload  # noqa: E402
from naspipe.frontend.simulation.lag_needed import with_late  # noqa: E402
from naspipe.frontend.simulation.scenario import profiled_scenario  # noqa: E402
from naspipe.runtime.devices.environment import describe_environment  # noqa: E402
from scripts.paper.common import draw_to, real_run  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

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
    """One run, in a process of its own."""
    space, sampler, optimizer, rule, steps, seed = key
    how = {**OWN.get(space, {"space": space}), **OPTIMIZERS[optimizer]}
    found = real_run(rule=rule, sampler=sampler, seed=seed, steps=steps, stages=1, **how)
    losses = found["losses"]
    means = [statistics.fmean(losses[n : n + GRAIN]) for n in range(0, steps, GRAIN)]
    return {
        "space": space, "sampler": sampler, "optimizer": optimizer, "rule": rule,
        "seed": seed, "steps": steps,
        "end": statistics.fmean(losses[-TAIL:]), "means": [round(mean, 5) for mean in means],
    }  # fmt: skip


def rates_of(space: str, rules: Sequence[str]) -> list[dict[str, Any]]:
    """Steps per second of each rule, simulated with costs profiled here."""
    named = OWN.get(space, {"space": space})
    if "data" not in named:
        workload = tiny_workload(space)
    else:
        workload = find_workload(named["space"], "tiny", named["data"], None)
    rows = []
    for sampler, stages, rule in itertools.product(SAMPLERS, STAGES, rules):
        execution = Execution(stages=stages)
        scenario = with_late(profiled_scenario(workload, execution), parse_rule(rule))
        run = scenario.run(scenario.pipeline(sampler, 0, SIMULATED), execution)
        speed = run.summary.passes_per_second
        rows.append(
            {
                "space": space, "sampler": sampler, "stages": stages, "rule": rule,
                "steps_per_second": speed,
            }
        )  # fmt: skip
    return rows


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """End losses beside those of ``exact`` with the same seeds."""
    table = Table(
        "space", "sampler", "optimizer", "rule", "seeds", "loss", "over exact", box=SIMPLE_HEAD
    )
    ends = {key_of(row): row["end"] for row in rows}
    for case, group in itertools.groupby(
        sorted(rows, key=key_of), key=lambda row: key_of(row)[:-1]
    ):
        own = list(group)
        *given, rule, steps = case
        exact = [ends.get((*given, "exact", steps, row["seed"])) for row in own]
        over = [row["end"] / to - 1.0 for row, to in zip(own, exact, strict=True) if to]
        shown = ""
        if over:
            shown = f"{statistics.fmean(over):+.1%} ({min(over):+.1%} to {max(over):+.1%})"
        loss = statistics.fmean(row["end"] for row in own)
        table.add_row(*given, rule, str(len(own)), f"{loss:.4f}", shown)
    return table


def draw(rows: Sequence[dict[str, Any]], rates: Sequence[dict[str, Any]], figure: Any) -> None:
    """Loss over steps, and over seconds on two and four stages, a line for each rule: of one space.

    Every line is the mean of its seeds; a band reaches from the least to the most.
    """
    speeds = {(each["stages"], each["rule"]): each["steps_per_second"] for each in rates}
    names = {0: "steps", 2: "seconds on 2 stages", 4: "seconds on 4 stages"}
    panels = [stages for stages in names if not stages or any(each == stages for each, _ in speeds)]
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    figure.set_size_inches(5 * len(panels), 4.2)
    for rule in dict.fromkeys(row["rule"] for row in rows):
        seeds = [row["means"] for row in rows if row["rule"] == rule]
        count = min(map(len, seeds))
        middle = [statistics.fmean(each[n] for each in seeds) for n in range(count)]
        ends = [[end(each[n] for each in seeds) for n in range(count)] for end in (min, max)]
        steps = [GRAIN * (n + 1) for n in range(count)]
        for axis, stages in zip(axes, panels, strict=True):
            speed = speeds.get((stages, rule)) if stages else 1.0
            if speed:
                times = [step / speed for step in steps]
                (line,) = axis.plot(times, middle, label=rule)
                axis.fill_between(times, *ends, color=line.get_color(), alpha=0.15, linewidth=0)
    for axis, stages in zip(axes, panels, strict=True):
        axis.set_xlabel(names[stages])
    axes[0].set_ylabel(f"loss, mean of {GRAIN} steps")
    axes[0].legend(fontsize="small")


def main(words: Sequence[str] | None = None) -> int:
    """Train what is missing, two runs at a time; print, draw and write."""
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
            others = [each for each in result["rates"] if each["space"] != space]
            result["rates"] = [*others, *rates_of(space, list(rules))]
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    cases = itertools.product(arguments.spaces, arguments.samplers, arguments.optimizers)
    for case in cases:
        space, sampler, optimizer = case
        own = [row for row in rows if key_of(row)[:3] == case]
        rates = [r for r in result["rates"] if (r["space"], r["sampler"]) == case[:2]]
        path = arguments.output.parent / f"{space}-{sampler.replace(':', '')}-{optimizer}.png"
        draw_to(path, lambda figure, own=own, rates=rates: draw(own, rates, figure))
    shown = [row for row in rows if row["space"] in arguments.spaces]
    Console(highlight=False).print(table_of(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
