"""Figure 4: convergence of the systems on two real data sets, over steps and over seconds.

And of naspipe with layers in front that are never read late, which the paper does not have. All of
it for streams whose neighbours may share layers (``uniform``) and for others (``spaced``).
Losses are those of real runs. How fast a system is was measured apart, in alternation on two
stages, and simulated on four with costs profiled here (``--simulated-only``: on both). A loss's
second follows from both, so runs may stand beside other work. Nothing is trained again that is in
``losses.json`` or that ``scripts/bench rules`` trained: naspipe's curves go by their rule.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import search_spaces
from naspipe.api.chosen_stages import late_layers, with_late
from naspipe.api.simulate import DATA_INFO, profiled_scenario
from naspipe.config.execution import Execution
from naspipe.config.rules import Lag, parse_rule
from naspipe.plan.pipeline import with_grown_lags
from scripts.paper.common import ROOT, Headline, Options, Result, mean, real_run
from scripts.paper.loss_clock import Clock
from scripts.tiny_workload import tiny_workload

STEPS = 1000
SEEDS = {
    ("nlp.c3", "uniform"): (0, 1, 2), ("cv.c3", "uniform"): (0, 1, 2),
    ("cv.c3", "spaced:8"): (0, 1, 2),
}  # fmt: skip
"""Of every space and sampler that is trained."""
REAL, SIMULATED = 2, 4
"""Stages on which speeds are measured, and on which they are simulated."""
TIMED = {"nlp.c3": 60, "cv.c3": 150}
"""Steps of a run whose speed is measured."""
SIMULATED_STEPS = 200
GRAIN = 25
"""Steps of which the mean is kept."""
TAIL = 4
"""Of those means, how many make up a loss that is compared."""
LOSSES = ROOT / "artifacts/figure4/losses.json"
PRICES = ROOT / "artifacts/rules/prices.json"

Curves = dict[str, dict[str, list[float]]]
"""Means of losses, by :func:`key_of` and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What one of the systems trains, and how."""

    policy: str = "csp"
    rule: str | None = None
    """Of the layers that are read late; None for the space's own."""
    trains_as: str | None = None
    """The system with the same bits; None for itself."""
    execution: dict[str, Any] | None = None

    def job(self, stages: int) -> dict[str, Any]:
        """What :func:`scripts.paper.common.real_run` has to know."""
        job: dict[str, Any] = {"policy": self.policy, "stages": stages}
        if self.policy == "bsp":
            job["bulk"] = stages
        if self.rule:
            job["rule"] = self.rule
        return job | ({"execution": self.execution} if self.execution else {})

    def trained_job(self, stages: int) -> dict[str, Any]:
        """The same losses on as few stages as give them: only those of ``asp`` depend on more."""
        job = self.job(stages)
        return job if self.policy == "asp" else job | {"stages": 1}


SYSTEMS = {
    "naspipe": System(),
    "naspipe, exact": System(rule="exact"),
    "gpipe": System(policy="bsp"),
    "pipedream": System(policy="asp"),
    "vpipe": System(
        policy="bsp", trains_as="gpipe", execution={"memory_budget": "2x", "prefetch": False}
    ),
}


def run(options: Options) -> Result:
    """Train what is missing, then measure and simulate speeds."""
    steps = options.steps or STEPS
    cases = [case for case in SEEDS if case[0] in (options.spaces or case)]
    curves = train_missing(cases, steps, LOSSES, PRICES)
    rows: list[dict[str, Any]] = []
    for case in cases:
        for stages in (REAL, SIMULATED):
            is_measured = stages == REAL and options.is_real
            found = (
                measured_speeds(*case, options.repetitions)
                if is_measured
                else simulated_speeds(*case, stages)
            )
            own = {
                name: {
                    str(seed): curves[key_of(*case, name, stages, steps)][str(seed)]
                    for seed in SEEDS[case]
                }
                for name in found
            }
            clock = "measured" if is_measured else "simulated"
            rows += [row | {"clock": clock} for row in rows_of(*case, stages, own, found)]
    return Result(
        experiment="figure4",
        title=f"Figure 4: convergence over {steps} steps, 3 seeds",
        kind=f"losses real, seconds {' and '.join(dict.fromkeys(r['clock'] for r in rows))}",
        rows=rows,
        headlines=[
            Headline(
                f"{row['space']}, {row['sampler']}, {row['system']}, {row['stages']} stages: "
                f"loss at the end; "
                f"after {row['at_seconds']:.0f} s",
                f"{row['loss']:.3f} ({row['least']:.3f} to {row['most']:.3f}) in "
                f"{row['seconds']:.0f} s; {row['loss_then']:.3f}",
                "a curve; naspipe lowest or equal",
            )
            for row in rows
        ],
        differs=(
            "tiny spaces, LibreOffice's help (English to German) and Fashion-MNIST instead of WMT "
            "and ImageNet, CPU processes; every system has the same batch, while the paper's "
            "GPipe and PipeDream have smaller ones for lack of memory; naspipe reads the shared "
            "layers in front late, as the space's rules say, and exact does not: there the first "
            "stage waits for each subnet's end; vpipe trains what "
            "gpipe trains, and swaps on an emulated device; seconds are steps over a speed that "
            "was measured apart"
        ),
        settings={"scale": "tiny", "tail": GRAIN * TAIL},
        extra={"curves": {row["curve"]: curves[row["curve"]] for row in rows}},
    )


def key_of(space: str, sampler: str, system: str, stages: int, steps: int) -> str:
    """What tells curves apart: naspipe's are those of any number of stages, and of its rule."""
    system = SYSTEMS[system].trains_as or system
    kind = SYSTEMS[system]
    if kind.policy == "csp":
        return causal_key(space, sampler, kind.rule or default_rule(space), steps)
    return f"{space}, {sampler}, {system}, {stages} stages, {steps} steps"


def causal_key(space: str, sampler: str, rule: str, steps: int) -> str:
    """Of naspipe, with one rule for all layers that are read late by default."""
    return f"{space}, {sampler}, naspipe {rule}, {steps} steps"


@cache
def default_rule(space: str) -> str:
    """Of the layers that are read late."""
    built = search_spaces.build(space, "tiny", DATA_INFO)
    (rule,) = {str(built.shared_rules[name]) for name in late_layers(built)}
    return rule


def kept(losses: Path, prices: Path) -> Curves:
    """What was trained so far, by this experiment or to find prices of rules."""
    found: Curves = json.loads(losses.read_text()) if losses.exists() else {}
    for row in json.loads(prices.read_text())["rows"] if prices.exists() else ():
        if row["optimizer"] == "default":
            key = causal_key(row["space"], row["sampler"], row["rule"], row["steps"])
            found.setdefault(key, {}).setdefault(str(row["seed"]), row["means"])
    return found


def train_missing(cases: Iterable[tuple[str, str]], steps: int, path: Path, prices: Path) -> Curves:
    """All curves of these spaces and samplers; two runs at a time."""
    known = kept(path, prices)
    own: Curves = json.loads(path.read_text()) if path.exists() else {}
    one_at_a_time = Lock()

    def train(key: str, space: str, sampler: str, job: dict[str, Any], seed: int) -> None:
        losses = real_run(space=space, sampler=sampler, steps=steps, seed=seed, **job)["losses"]
        means = [round(mean(losses[n : n + GRAIN]), 5) for n in range(0, steps, GRAIN)]
        with one_at_a_time:
            own.setdefault(key, {})[str(seed)] = known.setdefault(key, {})[str(seed)] = means
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(own, indent=1, sort_keys=True) + "\n")

    wanted = {
        (key_of(*case, name, stages, steps), seed): (*case, kind.trained_job(stages), seed)
        for case in cases
        for seed, (name, kind), stages in product(SEEDS[case], SYSTEMS.items(), (REAL, SIMULATED))
        if kind.trains_as is None
    }
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(train, key, *job)
            for (key, seed), job in wanted.items()
            if str(seed) not in known.get(key, {})
        ]
        for job in jobs:
            job.result()
    return known


def measured_speeds(space: str, sampler: str, rounds: int) -> dict[str, list[float]]:
    """Steps per second of every system once its lags have grown, in turn, so often."""
    found: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(rounds):
        for name, kind in SYSTEMS.items():
            job = {"steps": TIMED.get(space, 60), "flows": True, **kind.job(REAL)}
            done = real_run(space=space, sampler=sampler, seed=0, **job)
            found[name].append(done["passes_per_second"])
    return found


def simulated_speeds(space: str, sampler: str, stages: int) -> dict[str, list[float]]:
    """The same of the systems that do not swap."""
    execution = Execution(stages=stages)
    known = profiled_scenario(tiny_workload(space), execution)
    found = {}
    for name, kind in SYSTEMS.items():
        if kind.execution is None:
            scenario = with_late(known, parse_rule(kind.rule)) if kind.rule else known
            pipeline = with_grown_lags(
                scenario.pipeline(sampler, 0, SIMULATED_STEPS, policy=kind.policy, bulk=stages)
            )
            found[name] = [scenario.run(pipeline, execution).summary.passes_per_second]
    return found


def growth(space: str, system: str) -> int:
    """Steps for which the lags of a system grow."""
    kind = SYSTEMS[system]
    rule = parse_rule(kind.rule or default_rule(space))
    return rule.over if kind.policy == "csp" and isinstance(rule, Lag) else 0


def rows_of(
    space: str,
    sampler: str,
    stages: int,
    curves: dict[str, dict[str, list[float]]],
    speeds: dict[str, list[float]],
) -> list[dict[str, Any]]:
    """A row for each system; all are compared at the second at which the first one ends.

    While its lag grows naspipe is taken to be as fast as with ``exact``.
    """
    rates = {name: statistics.median(each) for name, each in speeds.items()}
    count = min(len(means) for each in curves.values() for means in each.values())
    clocks = {
        name: Clock(rates[name], growth(space, name), rates.get("naspipe, exact", rates[name]))
        for name in curves
    }
    at = min(clock.seconds(count * GRAIN) for clock in clocks.values())
    rows = []
    for name, seeds in curves.items():
        ends = [mean(means[-TAIL:]) for means in seeds.values()]
        then = max(1, sum(clocks[name].seconds(GRAIN * (n + 1)) <= at for n in range(count)))
        rows.append(
            {
                "space": space, "sampler": sampler, "system": name, "stages": stages,
                "seeds": len(ends),
                "loss": mean(ends), "least": min(ends), "most": max(ends),
                "steps_per_second": rates[name],
                "slowest": min(speeds[name]), "fastest": max(speeds[name]),
                "grows_for": clocks[name].grows_for, "rate_till_then": clocks[name].rate_till_then,
                "seconds": clocks[name].seconds(count * GRAIN), "at_seconds": at,
                "loss_then": mean([mean(m[max(0, then - TAIL) : then]) for m in seeds.values()]),
                "curve": key_of(space, sampler, name, stages, count * GRAIN),
            }
        )  # fmt: skip
    return rows


def draw(result: Result, figure: Any) -> None:
    """Loss over steps and over seconds, a band least seed to most; a line per space and sampler."""
    cases = list(dict.fromkeys((row["space"], row["sampler"]) for row in result.rows))
    counts = sorted({row["stages"] for row in result.rows})
    figure.set_size_inches(5 * (1 + len(counts)), 3.8 * len(cases))
    axes = figure.subplots(len(cases), 1 + len(counts), squeeze=False, sharey="row")
    styles = {"vpipe": "--", "naspipe, exact": ":"}
    for case, line in zip(cases, axes, strict=True):
        mine = [row for row in result.rows if (row["space"], row["sampler"]) == case]
        panels = [(counts[0], False), *((stages, True) for stages in counts)]
        for axis, (stages, is_timed) in zip(line, panels, strict=True):
            for row in mine:
                if row["stages"] == stages:
                    own = (row[key] for key in ("steps_per_second", "grows_for", "rate_till_then"))
                    clock = Clock(*own) if is_timed else Clock(1.0)
                    seeds = list(result.extra["curves"][row["curve"]].values())
                    clock.band(axis, seeds, GRAIN, styles.get(row["system"], "-"), row["system"])
            (told,) = {row["clock"] for row in mine if row["stages"] == stages}
            axis.set_xlabel(f"seconds on {stages} stages, {told}" if is_timed else "steps")
        line[0].set_ylabel(f"{', '.join(case)}: loss, mean of {GRAIN} steps")
        line[0].legend(fontsize="small")
