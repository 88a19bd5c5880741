"""Blockwise distillation on real workers, in alternation; writes artifacts/blockwise/real.json.

A searched network that MobileNetV2 teaches in six blocks, and the separable convolutions of a
VGG-16: relayed without and with a barrier, layer by layer with the teacher's blocks repeated, and
in one process. Beside each what the simulator expects of what layers took in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import naspipe
import search_spaces
from naspipe.api.distill import blockwise_streams
from naspipe.api.planning import make_pipeline, make_plan
from naspipe.config.ids import (
    Access,
    AccessKind,
    StreamId,
)
from naspipe.distill.blockwise import RELAYS
from naspipe.inputs.named import find_workload
from naspipe.inputs.subnet_sources import draw_stream
from naspipe.jobs.workload import wiring_of
from naspipe.machine.determinism import describe_environment
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.simulation import simulate_run
from naspipe.plan.virtual_costs import StreamCosts, TableCosts
from naspipe.store.access_log import read_joint_accesses
from scripts.bench.common import ROOT


class Pair(NamedTuple):
    """A teacher and a student by their names."""

    teacher: str
    student: str
    batch_size: int


class Way(NamedTuple):
    """How blocks are trained."""

    relay: str
    stages: int


PAIRS = {"NAS": Pair("mobilenet-v2", "proxyless", 64), "VGG-16": Pair("vgg16", "separable", 64)}
WAYS = {
    "layerwise": Way("apart", 2),
    "barrier": Way("barrier", 2),
    "relayed": Way("decoupled", 2),
    "one process": Way("decoupled", 1),
}
ALONE = "one process"
KINDS = (AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE)


def parts(pair: Pair) -> tuple[list[Any], list[Any], Any]:
    """The teacher's blocks as they begin (what they cost does not depend on it), students, data."""
    sizes = {"batch_size": pair.batch_size}
    named = find_workload(pair.teacher, "tiny", None, None, sizes)
    modules = [block.candidates[0]() for block in named.space.blocks]
    cuts = search_spaces.cuts(pair.teacher)
    teachers = naspipe.Teacher(modules).blocks(cuts)
    info = named.data.info
    return teachers, search_spaces.students_of(pair.teacher, pair.student, "tiny", info), named.data


def costs_of(logs: list[list[Access]], relay: str) -> list[CostTable]:
    """What each layer took in one process, of the streams of a way: medians of its log.

    Profiles are measured at other times; on a shared machine they may be off by as much as a ratio.
    """
    tables = []
    for log in logs:
        taken: dict[tuple[int, int], dict[AccessKind, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for access in log:
            place = (access.layer.block, access.layer.candidate)
            taken[place][access.kind].append(access.end_ns - access.start_ns)
        tables.append(
            {
                place: LayerCost(*(int(statistics.median(own[kind] or [0])) for kind in KINDS))
                for place, own in taken.items()
            }
        )
    count = len(tables) // 2
    if RELAYS[relay] == RELAYS["apart"]:
        alone = [own[0, 0] for own in tables[count:]]
        tables[count:] = [
            {(block, 0): alone[block] for block in range(number + 1)} for number in range(count)
        ]
    return [CostTable(own) for own in tables]


def expected(pair: Pair, way: Way, steps: int, alone: list[list[Access]]) -> float:
    """Steps per second, simulated with what layers took in one process."""
    teachers, students, data = parts(pair)
    streams = blockwise_streams(
        teachers, students, data, steps=steps, relay=way.relay, recipe="blockwise"
    )
    workloads, costs = streams.workloads, costs_of(alone, way.relay)
    execution = naspipe.Execution(stages=way.stages, partition=RELAYS[way.relay])
    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(workloads)]
    wiring = wiring_of(workloads, streams.taps)
    plan = make_plan(workloads, execution, subnets, costs, wiring)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring)
    timing = StreamCosts([TableCosts(table=each) for each in costs])
    run = simulate_run(pipeline, plan, execution, timing)
    return len(subnets[0]) / (run.makespan_ns / 1e9)


def outputs_alive(logs: list[list[Access]]) -> int:
    """The most outputs of one block of the teacher that its student had not taken yet."""
    count, most = len(logs) // 2, 0
    for student, teacher in zip(logs[:count], logs[count:], strict=True):
        end = max(access.layer.block for access in student)
        made = max(access.layer.block for access in teacher)
        marks = [(a.end_ns, 1) for a in teacher if a.layer.block == made]
        forwards = (a for a in student if a.kind is AccessKind.FORWARD and a.layer.block == end)
        marks += [(a.start_ns, -1) for a in forwards]
        now = 0
        for _, change in sorted(marks):
            now += change
            most = max(most, now)
    return most


def measure(pair: Pair, way: Way, steps: int) -> tuple[dict[str, float], list[list[Access]]]:
    """One run, and its logs: of the students, then of the teacher."""
    teachers, students, data = parts(pair)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        naspipe.distill_blockwise(
            teachers, students, data, steps=steps, relay=way.relay, recipe="blockwise",
            stages=way.stages, run_dir=path, execution={"partition": RELAYS[way.relay]},
        )  # fmt: skip
        numbers = range(len(teachers))
        names = [f"{kind}-{number}" for kind in ("block", "teacher") for number in numbers]
        logs = read_joint_accesses([path / name for name in names])
    together = [access for log in logs for access in log]
    begin = min(access.start_ns for access in together)
    seconds = (max(access.end_ns for access in together) - begin) / 1e9
    found = {
        "steps_per_second": steps / seconds,
        "teacher_reads": sum(len(log) for log in logs[len(teachers) :]) / steps,
        "outputs_alive": outputs_alive(logs),
    }
    return found, logs


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/blockwise/real.json")
    arguments = parser.parse_args(words)
    console = Console(highlight=False)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in arguments.only:
        rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(arguments.pairs):
            logs = {}
            for way in sorted(WAYS, reverse=bool(number % 2)):
                row, logs[way] = measure(PAIRS[name], WAYS[way], arguments.steps)
                rows[way].append(row)
            for way, own in WAYS.items():
                row = rows[way][-1]
                row["simulated"] = expected(PAIRS[name], own, arguments.steps, logs[ALONE])
                console.print(f"{name}, {way}: {row}")
        found[name] = rows
    table = Table("over", "measured", "simulated", "ratio", box=SIMPLE_HEAD)
    for name, rows in found.items():
        for way in [each for each in WAYS if each != "relayed"]:
            ratios = [
                [a[key] / b[key] for a, b in zip(rows["relayed"], rows[way], strict=True)]
                for key in ("steps_per_second", "simulated")
            ]
            real, simulated = map(statistics.median, ratios)
            table.add_row(f"{name}: {way}", _spread(ratios[0]), f"{simulated:.2f}",
                          f"{real / simulated:.2f}")  # fmt: skip
    console.print(table)
    result: dict[str, Any] = {"environment": describe_environment(), "rows": found}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
