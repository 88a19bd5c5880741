"""Measure one stage against the plain loop, and two stages against one, in alternation.

Every figure is steps per second of the training itself: from the first access to the last
for naspipe, around the loop for the plain one. Data, start-up and checkpoints are left out.
Two plain loops at once, which wait for nothing of each other, say what two processes can gain on
this machine: cores that share a cache, its memory or a clock give less than twice the speed.
Where a machine's speed wavers from minute to minute, take many short pairs:
``--kinds 1 2 --steps 40 --repetitions 16``. Every other repetition has the reverse order.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import naspipe  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.metrics import summarize  # noqa: E402
from naspipe.streams.samplers import draw_stream  # noqa: E402
from scripts.tiny_workload import flowing, tiny_workload  # noqa: E402
from tests.equivalence.harness import oracle_of  # noqa: E402

BESIDE, SPLIT, CHOSEN = "two plain loops", "2 split", "2 auto"
KINDS = ("plain", "1", "2", SPLIT, CHOSEN, BESIDE)
"""Kinds with two stages may say how backwards are computed (``backward=``); else they are whole."""
USUAL = ("plain", "1", "2", BESIDE)
PAIRS = (
    ("1", "plain"), ("2", "1"), (SPLIT, "1"), (SPLIT, "2"), (CHOSEN, "1"), (CHOSEN, "2"),
    (BESIDE, "plain"), ("2", BESIDE),
)  # fmt: skip
SAMPLERS = ("spaced:8", "uniform")


def plain(named: Workload, sampler: str, steps: int) -> float:
    """Steps per second of the oracle."""
    oracle = oracle_of(
        named.space, 0, named.recipe.optimizer, named.recipe.lr, named.recipe.optimizer_options
    )
    stream = draw_stream(sampler, named.space.candidate_counts, 0, steps)
    start = time.perf_counter()
    for y, choices in enumerate(stream):
        oracle.step(y, named.space.chain(choices), named.data(0, y), named.loss)
    return steps / (time.perf_counter() - start)


def piped(named: Workload, sampler: str, steps: int, kind: str, directory: Path) -> float:
    """Steps per second of naspipe."""
    stages, backward = int(kind[0]), kind[2:] or "whole"
    shutil.rmtree(directory, ignore_errors=True)
    recipe = named.recipe
    naspipe.train(
        named.space, named.data, named.loss, steps=steps, optimizer=recipe.optimizer,
        lr=recipe.lr, optimizer_options=recipe.optimizer_options, sampler=sampler, stages=stages,
        backward=backward, run_dir=directory,
    )  # fmt: skip
    return summarize(read_run_accesses(directory), stages).passes_per_second


def measure(arguments: argparse.Namespace) -> float:
    """Steps per second of one kind of run, in this process."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    named = flowing(tiny_workload(arguments.space))
    if arguments.one == "plain":
        return plain(named, arguments.sampler, arguments.steps)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        return piped(named, arguments.sampler, arguments.steps, arguments.one, run)


def measure_apart(arguments: argparse.Namespace, kind: str, sampler: str) -> float:
    """The same in a new process, so that no run finds memory that another has warmed."""
    count, one = (2, "plain") if kind == BESIDE else (1, kind)
    command = [
        sys.executable, __file__, "--one", one, "--sampler", sampler, "--space", arguments.space,
        "--steps", str(arguments.steps),
    ]  # fmt: skip
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    said = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise SystemExit(f"{' '.join(command)} failed")
    return sum(map(float, said))


def main() -> None:
    """Measure, print medians and spread, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=USUAL)
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/scaling/result.json")
    parser.add_argument("--one", choices=KINDS[:-1], help="measure one run and print it")
    parser.add_argument("--sampler", default="spaced:8", help="of the run that --one measures")
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments))
        return
    figures: dict[str, list[float]] = {}
    for repetition in range(arguments.repetitions):
        for sampler in arguments.samplers:
            kinds = arguments.kinds[:: -1 if repetition % 2 else 1]
            found = {k: measure_apart(arguments, k, sampler) for k in kinds}
            for over, under in PAIRS:
                if {over, under} <= found.keys():
                    what = f"{sampler}: speed of {over} over {under}"
                    figures.setdefault(what, []).append(found[over] / found[under])
            for kind, speed in found.items():
                figures.setdefault(f"{sampler}: {kind}, steps/s", []).append(speed)
            print(repetition, sampler, {k: round(v, 2) for k, v in found.items()}, flush=True)
    report(arguments, figures)


def report(arguments: argparse.Namespace, figures: dict[str, list[float]]) -> None:
    """Print and write median, least and most of every figure."""
    result: dict[str, Any] = {"space": arguments.space, "steps": arguments.steps}
    for what, values in figures.items():
        median, least, most = statistics.median(values), min(values), max(values)
        print(f"{what:32} median {median:6.3f}   {least:.3f} to {most:.3f}")
        result[what] = {"median": median, "min": least, "max": most, "values": values}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
