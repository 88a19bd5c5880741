"""Students with teachers on real workers, in alternation; writes artifacts/teachers/real.json.

BYOL with a teacher of this step and of the step before, and a convolutional network that a vision
transformer teaches, ahead or not; both also with one stage at a time. Beside each the bubble that
the simulator expects of the costs that are profiled here, with the links and pauses that the log
shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import naspipe
from naspipe.api.planning import make_pipeline, make_plan, planning_costs
from naspipe.api.train import train_together
from naspipe.config.definition import Settings
from naspipe.config.ids import Access, AccessKind
from naspipe.config.recipe_file import read_recipe
from naspipe.distill.distillation import Distillation, MakesTeacher
from naspipe.distill.joined import join
from naspipe.inputs.named import find_workload
from naspipe.inputs.subnet_sources import draw_stream
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import describe_environment
from naspipe.plan.fidelity import link_ns, pause_ns
from naspipe.plan.simulation import simulate_run
from naspipe.plan.virtual_costs import StreamCosts, TableCosts
from naspipe.store.access_log import read_joint_accesses
from naspipe.store.metrics import bubble_ratio
from scripts.bench.common import ROOT
from scripts.comparing.speed import steps_per_second
from scripts.paper import orders


class Way(NamedTuple):
    """One way to train one student."""

    space: str
    recipe: str
    teacher: Callable[[Workload], MakesTeacher]
    stages: int
    order: str = "auto"


def _transformer(student: Workload, window: int) -> naspipe.Teacher:
    """The transformer as it begins: what it costs does not depend on its weights."""
    space = find_workload("vit", "tiny", None, None, {"batch_size": 16}).space
    modules = [block.candidates[0]() for block in space.blocks]
    return naspipe.Teacher(modules, window=window)


def _byol(lag: int, stages: int, order: str = "auto") -> Way:
    return Way("byol", "byol", lambda _: naspipe.Momentum(0.99, 1.0, lag=lag), stages, order)


def _soft(window: int, stages: int, order: str = "auto") -> Way:
    return Way("cnn", "soft-target", lambda s: _transformer(s, window), stages, order)


WAYS = {
    "byol, model parallel": _byol(0, 2, "model-parallel"),
    "byol, GPipe's order": _byol(0, 2, "gpipe"),
    "byol, K = 0": _byol(0, 2),
    "byol, K = 1": _byol(1, 2),
    "byol, one process": _byol(1, 1),
    "soft target, model parallel": _soft(1, 2, "model-parallel"),
    "soft target, not ahead": _soft(1, 2),
    "soft target, ahead": _soft(16, 2),
    "soft target, one process": _soft(16, 1),
}


def workload_of(way: Way, steps: int) -> Workload:
    """The student, defined."""
    file = read_recipe(way.recipe)
    sizes = file.applied_to(Settings()).data
    if way.space == "cnn":
        sizes = {**sizes, "batch_size": 64}  # smaller ones take as long as their messages
    named = find_workload(way.space, "tiny", None, None, dict(sizes))
    recipe = file.applied_to(Settings(recipe=named.recipe)).recipe
    return named.redefined(recipe=recipe, steps=steps, seed=1)


def expected_bubble(
    taught: Distillation, execution: naspipe.Execution, accesses: list[Access]
) -> float:
    """The simulator's, from costs that are profiled here; links and pauses are as the log shows."""
    costs = planning_costs(taught.workloads, execution)
    from naspipe.config.ids import StreamId

    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(taught.workloads)]
    wiring = naspipe.jobs.workload.wiring_of(taught.workloads, taught.taps)
    plan = make_plan(taught.workloads, execution, subnets, costs, wiring)
    pipeline = make_pipeline(taught.workloads, execution, subnets, costs, wiring)
    pause = pause_ns(accesses)
    link = max(0, link_ns(accesses) - pause)
    tables = [stream.costs for stream in pipeline.streams if stream.costs is not None]
    timing = StreamCosts([TableCosts(table=t, link_ns=link, pause_ns=pause) for t in tables])
    run = simulate_run(pipeline, plan, execution, timing)
    return bubble_ratio(list(run.accesses), execution.workers)


def waiting(logs: list[list[Access]], blocks: list[int]) -> int:
    """The most outputs of the teacher that there were at a time before the student took them."""
    made, taken = (
        sorted(
            end.end_ns if stream else end.start_ns
            for end in log
            if end.kind is AccessKind.FORWARD and end.layer.block == blocks[stream] - 1
        )
        for stream, log in ((1, logs[1]), (0, logs[0]))
    )
    marks = sorted([(time, 1) for time in made] + [(time, -1) for time in taken])
    most = now = 0
    for _, change in marks:
        now += change
        most = max(most, now)
    return most


def measure(name: str, steps: int) -> dict[str, float]:
    """One run."""
    way = WAYS[name]
    student = workload_of(way, steps)
    teacher = way.teacher(student)
    passes = student.recipe.steps.passes
    execution = naspipe.Execution(stages=way.stages, window=2 * passes, order=way.order)
    taught = join([student], execution, teacher=teacher)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        train_together([student], execution, path, teacher=teacher)
        logs = read_joint_accesses([path, path / "teacher"])
    together = [
        access._replace(layer=access.layer._replace(stream=number))
        for number, log in enumerate(logs)
        for access in log
    ]
    found = {
        "passes_per_second": steps_per_second(logs[0]),
        "bubble": bubble_ratio(sorted(together, key=lambda each: each.start_ns), way.stages),
        "teacher_outputs": waiting(logs, [len(each.space) for each in taught.workloads]),
    }
    if way.stages > 1:
        found["simulated_bubble"] = expected_bubble(taught, execution, together)
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/teachers/real.json")
    arguments = parser.parse_args(words)
    orders.register()
    console = Console(highlight=False)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.only}
    for pair in range(arguments.pairs):
        for name in sorted(arguments.only, reverse=bool(pair % 2)):
            found[name].append(measure(name, arguments.steps))
            console.print(f"{name}: {found[name][-1]}")
    table = Table("run", "passes/s", "bubble", "simulated", "teacher outputs", box=SIMPLE_HEAD)
    for name, rows in found.items():
        cells = [_spread([row[key] for row in rows]) for key in ("passes_per_second", "bubble")]
        simulated = [row["simulated_bubble"] for row in rows if "simulated_bubble" in row]
        most = max(row["teacher_outputs"] for row in rows)
        table.add_row(name, *cells, _spread(simulated) if simulated else "", str(most))
    console.print(table)
    result: dict[str, Any] = {"environment": describe_environment(), "rows": found}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
