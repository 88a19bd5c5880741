"""What a choice of the execution costs: runs with two sets of settings, in alternation.

    scripts/bench_pairs.py nlp.c2 --stages 2 --right memory_budget=1.5x
    scripts/bench_pairs.py nlp.c1 --scale small --stages 2 --left data_path=zmq

All runs are of one definition, so all have to be IDENTICAL; the exit status is 1 when one is not.
Ratios are right over left of each pair: of seconds in all, of steps per second by the access log,
and of processor seconds, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.api.training import Training  # noqa: E402
from naspipe.config.definition import Settings, apply_settings  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.compare import compare_runs  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from naspipe.store.metrics import summarize  # noqa: E402
from naspipe.wire.reports import Observer  # noqa: E402
from scripts.tiny_workload import workload_with_data  # noqa: E402

FIGURES = ("seconds", "steps_per_second", "processor_seconds")
SIDES = ("left", "right")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("space", help="one of naspipe's, or module:attribute")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sampler", default="uniform")
    parser.add_argument("--pairs", type=int, default=5)
    for side in SIDES:
        parser.add_argument(f"--{side}", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, help="a JSON file, written after every pair")
    return parser.parse_args(arguments)


def processor_seconds() -> float:
    """Of the processes that have ended."""
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def measure(workload: Workload, stages: int, settings: Sequence[str], path: Path) -> dict[str, Any]:
    """Train once."""
    texts = [f"stages={stages}", *settings]
    execution = apply_settings(Settings(), texts).execution
    start, before = time.monotonic(), processor_seconds()
    Training(workloads=[workload], execution=execution, path=path, observer=Observer()).run()
    seconds, taken = time.monotonic() - start, processor_seconds() - before
    found = summarize(read_run_accesses(path), stages)
    return {
        "seconds": seconds,
        "steps_per_second": found.passes_per_second,
        "processor_seconds": taken,
        "hit_rate": found.hit_rate,
        "stall_ratio": found.stall_ratio,
        "load": os.getloadavg()[0],
    }


def ratios(pairs: Sequence[dict[str, Any]], figure: str) -> list[float]:
    """Right over left, pair by pair, the least first."""
    return sorted(pair["right"][figure] / pair["left"][figure] for pair in pairs)


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both sides; of the ratios their spread, too."""
    found: dict[str, Any] = {}
    for figure in FIGURES:
        each = ratios(pairs, figure)
        found[figure] = {
            **{side: median(pair[side][figure] for pair in pairs) for side in SIDES},
            "ratio": {"median": median(each), "least": each[0], "most": each[-1]},
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in alternation, print and write."""
    options = read_arguments(arguments)
    workload = workload_with_data(options.space, options.scale)
    workload = workload.redefined(steps=options.steps, sampler=options.sampler)
    pairs: list[dict[str, Any]] = []
    record = {"command": sys.argv[1:], "environment": describe_environment(), "pairs": pairs}
    verdict = "no pair"
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        first = Path(scratch) / "first"
        for number in range(options.pairs):
            pair: dict[str, Any] = {}
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                path = Path(scratch) / f"{number}-{side}" if first.exists() else first
                pair[side] = measure(workload, options.stages, getattr(options, side), path)
                verdict = str(compare_runs([first, path])[0]) if path != first else verdict
                if path != first and verdict != "IDENTICAL":
                    print(f"pair {number}, {side}: {verdict}")
                    return 1
            pairs.append(pair)
            print({side: {key: round(value, 3) for key, value in pair[side].items()}
                   for side in SIDES}, flush=True)  # fmt: skip
            if options.output is not None:
                options.output.parent.mkdir(parents=True, exist_ok=True)
                content = {**record, "summary": summary(pairs), "verdict": verdict}
                write_json(options.output, content)
    for figure, found in summary(pairs).items():
        print(figure, {key: value if isinstance(value, dict) else round(value, 3)
                       for key, value in found.items()})  # fmt: skip
    print(verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
