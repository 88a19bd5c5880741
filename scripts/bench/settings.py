"""Compare settings of an execution: the same training with each of them, in alternation.

    python scripts/bench settings nlp.c1 plain stages=1 stages=2 "plain x2"
    python scripts/bench settings nlp.c3 stages=1 stages=2 "stages=2 backward=auto" --steps 60
    python scripts/bench settings nlp.c2 stages=2 "stages=2 memory_budget=1.5x"
    python scripts/bench settings vgg16 stages=1 groups=2 --define passes=accumulate:8 --steps 60

A variant is a list of execution settings, as after ``--set``. ``plain`` is the plain PyTorch loop.
``x2`` after a variant trains it twice at the same time, in two independent processes: the most that
two processes can reach on this machine. Every run is a new process, and every other repetition has
the reverse order. The exit status is 1 unless all runs of a sampler are bitwise identical.

=================== ===========================================================================
``steps_per_second`` of the training itself: data, start-up and the final checkpoint are left out
``seconds``          of the whole run
``cpu_seconds``      of all processes of the run; other work on the machine disturbs it least
=================== ===========================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from naspipe.api.training import Training
from naspipe.config.definition import Settings, apply_settings
from naspipe.inputs.named import find_workload
from naspipe.jobs.workload import Workload
from naspipe.store.access_log import read_run_accesses
from naspipe.store.compare import compare_runs
from naspipe.store.metrics import summarize
from naspipe.streams.samplers import draw_stream
from naspipe.wire.reports import Observer
from scripts.bench.common import Spread, in_turn, keep, measure_apart, show
from scripts.tiny_workload import flowing, workload_with_data
from tests.equivalence.harness import oracle_of

FIGURES = ("steps_per_second", "seconds", "cpu_seconds")
TWICE = " x2"


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench settings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("space", help="a named space, or module:attribute")
    parser.add_argument("variants", nargs="+", metavar="VARIANT")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--samplers", nargs="+", default=["uniform"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--define", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the recipe"
    )
    parser.add_argument("--output", type=Path, help="a JSON file, written after each repetition")
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def workload_of(arguments: argparse.Namespace, sampler: str) -> Workload:
    """Return what is trained; all lags of shared layers have grown, however short the run is."""
    if ":" in arguments.space:
        workload = find_workload(arguments.space, arguments.scale, None, None)
    else:
        workload = workload_with_data(arguments.space, arguments.scale)
    recipe = apply_settings(Settings(recipe=workload.recipe), arguments.define).recipe
    workload = workload.redefined(recipe=recipe, steps=arguments.steps, sampler=sampler)
    return flowing(workload)


def plain_speed(workload: Workload, sampler: str, steps: int) -> float:
    """Return the steps per second of the plain loop."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe, space = workload.recipe, workload.space
    oracle = oracle_of(space, 0, recipe.optimizer, recipe.lr, recipe.optimizer_options)
    stream = draw_stream(sampler, space.candidate_counts, 0, steps)
    start = time.perf_counter()
    for y, choices in enumerate(stream):
        oracle.step(y, space.chain(choices), workload.data(0, y), workload.loss)
    return steps / (time.perf_counter() - start)


def measure_here(arguments: argparse.Namespace) -> dict[str, float]:
    """Run one variant in this process and its children."""
    (variant,), (sampler,) = arguments.variants, arguments.samplers
    workload = workload_of(arguments, sampler)
    start = time.monotonic()
    if variant == "plain":
        speed = plain_speed(workload, sampler, arguments.steps)
    else:
        execution = apply_settings(Settings(), variant.split()).execution
        path = Path(str(arguments.run_dir).format(pid=os.getpid()))
        Training(workloads=[workload], execution=execution, path=path, observer=Observer()).run()
        speed = summarize(read_run_accesses(path), execution.workers).passes_per_second
    seconds = time.monotonic() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    return dict(zip(FIGURES, (speed, seconds, cpu), strict=True))


def measure(arguments: argparse.Namespace, variant: str, sampler: str, run: Path) -> dict[str, Any]:
    """Run one variant in a new process; of two at once, return the sum of speeds."""
    is_twice = variant.endswith(TWICE)
    words = [
        arguments.space, variant.removesuffix(TWICE), "--scale", arguments.scale,
        "--samplers", sampler, "--steps", str(arguments.steps), "--define", *arguments.define,
    ]  # fmt: skip
    if not is_twice:
        return measure_apart("settings", [*words, "--run-dir", str(run)])[0]
    with tempfile.TemporaryDirectory() as scratch:
        words = [*words, "--run-dir", f"{scratch}/{{pid}}"]  # each process has its own
        found = measure_apart("settings", words, copies=2)
    return {
        "steps_per_second": sum(each["steps_per_second"] for each in found),
        "seconds": max(each["seconds"] for each in found),
        "cpu_seconds": sum(each["cpu_seconds"] for each in found),
    }


def summary(runs: Sequence[dict[str, Any]], variants: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per sampler, variant and figure, with ratios to the first variant."""
    rows = []
    for sampler in dict.fromkeys(run["sampler"] for run in runs):
        for variant in variants:
            mine = [run for run in runs if (run["sampler"], run["variant"]) == (sampler, variant)]
            first = [
                run for run in runs if (run["sampler"], run["variant"]) == (sampler, variants[0])
            ]
            for figure in FIGURES:
                values = [run[figure] for run in mine]
                ratios = [run[figure] / base[figure] for run, base in zip(mine, first, strict=True)]
                rows.append(
                    {
                        "sampler": sampler, "variant": variant, "figure": figure,
                        "value": Spread.of(values)._asdict(), "ratio": Spread.of(ratios)._asdict(),
                    }
                )  # fmt: skip
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Measure in alternation, print medians and spreads, and write JSON."""
    arguments = read_arguments(words)
    if arguments.run_dir is not None:
        print(json.dumps(measure_here(arguments)))
        return 0
    runs: list[dict[str, Any]] = []
    is_identical = True
    with tempfile.TemporaryDirectory(prefix="naspipe-bench-") as scratch:
        for repetition in range(arguments.repetitions):
            for sampler in arguments.samplers:
                first = Path(scratch) / sampler.replace(":", "-")
                for variant in in_turn(arguments.variants, repetition):
                    run = first.with_name(f"{first.name}-next") if first.exists() else first
                    found = measure(arguments, variant, sampler, run)
                    runs.append({"sampler": sampler, "variant": variant, **found})
                    print(f"{repetition} {sampler} {variant}: {found}", file=sys.stderr, flush=True)
                    if run != first and run.exists():
                        verdict = str(compare_runs([first, run])[0])
                        is_identical &= verdict == "IDENTICAL"
                        if verdict != "IDENTICAL":
                            print(f"{sampler} {variant}: {verdict}", file=sys.stderr)
                        shutil.rmtree(run)
            rows = summary(runs, arguments.variants)
            result = {"is_identical": is_identical, "rows": rows, "runs": runs}
            keep(arguments.output, "settings", words or sys.argv[2:], result)
    show(
        f"{arguments.space}, {arguments.steps} steps; ratios are to {arguments.variants[0]}",
        ["sampler", "variant", "figure", "median (least to most)", "ratio"],
        [
            (row["sampler"], row["variant"], row["figure"], Spread(**row["value"]),
             Spread(**row["ratio"]))
            for row in rows
        ],
    )  # fmt: skip
    print("all runs are bitwise identical" if is_identical else "RUNS DIFFER")
    return int(not is_identical)
