"""What it is worth to know which layers have no state; writes artifacts/stateless/result.json.

Bound and speed, simulated with costs profiled here and measured on two stages in alternation, with
layers without parameters and buffers taken for frozen, and for whatever their block's rule says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from torch import nn  # noqa: E402

import naspipe as npp  # noqa: E402
from naspipe.api.simulate import profiled_scenario  # noqa: E402
from naspipe.api.train import train_together, workload  # noqa: E402
from naspipe.inputs.named import find_workload  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.plan.simulation import bound_of  # noqa: E402
from naspipe.profiling.counts import stateless_layers  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.metrics import bubble_ratio  # noqa: E402
from scripts.comparing.speed import steps_per_second  # noqa: E402

PLANNED = "naspipe.api.planning.stateless_layers"
STAGES = (2, 4, 8)
SIMULATED = 400


def nasbench201() -> Workload:
    """Its cell through NNI: of five candidates ``none``, ``skip`` and the pool have no state."""
    from scripts import nasbench201 as own

    return workload(own.space, own.data, own.loss, steps=1, norms="deferred")


def cv_c3() -> Workload:
    """Every candidate ends in a norm, so none is without state."""
    return find_workload("cv.c3", "tiny", None, None)


def pools() -> Workload:
    """A plain space with ways past a block: two convolutions, a skip and a pool in each of 12."""

    def block() -> npp.Block:
        sizes = [lambda k=k: nn.Conv2d(16, 16, k, padding=k // 2) for k in (3, 5)]
        return npp.Block([*sizes, nn.Identity, lambda: nn.MaxPool2d(3, 1, 1)])

    def end() -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    stem = npp.Shared("stem", lambda: nn.Conv2d(1, 16, 3, 2, 1), npp.Lag(4))
    space = npp.Space("pools", [stem, *(block() for _ in range(12)), npp.Shared("head", end)])
    return workload(space, cv_c3().data, nn.CrossEntropyLoss(), steps=1)


CASES: dict[str, Callable[[], Workload]] = {
    "nasbench201": nasbench201,
    "cv.c3": cv_c3,
    "pools": pools,
}


def simulated(own: Workload, knows: bool) -> list[dict[str, Any]]:
    """Bound, bubble and speed on each number of stages."""
    rows = []
    for stages in STAGES:
        execution = npp.Execution(stages=stages)
        scenario = profiled_scenario(own, execution)
        if not knows:
            scenario = replace(scenario, stateless=frozenset)
        pipeline = scenario.pipeline("uniform", 0, SIMULATED)
        summary = scenario.run(pipeline, execution).summary
        rows.append(
            {
                "stages": stages,
                "knows": knows,
                "bound": bound_of(pipeline).steady_bubble(stages),
                "parallelism": bound_of(pipeline).steady_parallelism,
                "bubble": summary.bubble_ratio,
                "steps_per_second": summary.passes_per_second,
            }
        )
    return rows


def real(own: Workload, knows: bool, stages: int) -> dict[str, float]:
    """Speed and bubble of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "run"
        if knows:
            (run,) = train_together([own], npp.Execution(stages=stages), place)
        else:
            with patch(PLANNED, lambda space: frozenset()):
                (run,) = train_together([own], npp.Execution(stages=stages), place)
        accesses = read_run_accesses(run.directory.path)
    return {
        "steps_per_second": steps_per_second(accesses),
        "bubble": bubble_ratio(accesses, stages),
        "load": os.getloadavg()[0],
    }


def pairs_of(own: Workload, pairs: int, stages: int) -> dict[str, list[dict[str, float]]]:
    """Runs in alternation, by whether it is known."""
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for pair in range(pairs):
        for knows in (False, True) if pair % 2 == 0 else (True, False):
            found["after" if knows else "before"].append(real(own, knows, stages))
    return found


def measured(name: str, pairs: int, steps: int) -> dict[str, Any]:
    """All of one space."""
    own = CASES[name]().redefined(steps=steps, seed=0, sampler="uniform")
    rows = [row for knows in (False, True) for row in simulated(own, knows)]
    layers = sum(len(block.candidates) for block in own.space.blocks)
    of_layers = f"{len(stateless_layers(own.space))} of {layers}"
    found = {"space": name, "stateless": of_layers, "steps": steps, "simulated": rows}
    return {**found, "real": pairs_of(own, pairs, 2)}


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """Before and after, for each space."""
    titles = (
        "space",
        "without state",
        "stages",
        "can be busy",
        "bubble",
        "steps/s",
        "real, 2 stages",
    )
    table = Table(*titles, box=SIMPLE_HEAD)
    for row in rows:
        of_knows = {(each["stages"], each["knows"]): each for each in row["simulated"]}
        speeds = [[run["steps_per_second"] for run in row["real"][w]] for w in ("before", "after")]
        ratios = [after / before for before, after in zip(*speeds, strict=True)]
        over = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        for stages in STAGES:
            both = [of_knows[stages, knows] for knows in (False, True)]
            cells = [
                " to ".join(f"{each[key]:.{digits}f}" for each in both)
                for key, digits in (("parallelism", 1), ("bubble", 2), ("steps_per_second", 1))
            ]
            first = (row["space"], row["stateless"]) if stages == STAGES[0] else ("", "")
            table.add_row(*first, str(stages), *cells, over if stages == 2 else "")
    return table


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spaces", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/stateless/result.json")
    arguments = parser.parse_args(words)
    found = [measured(name, arguments.pairs, arguments.steps) for name in arguments.spaces]
    result = {"environment": describe_environment(), "rows": found}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    console = Console(highlight=False, width=120)
    console.print(table_of(found))


if __name__ == "__main__":
    main()
