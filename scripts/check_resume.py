"""Runs of real spaces that are interrupted and resumed on other stages, against undisturbed ones.

Writes artifacts/faults/resume.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.store.compare import compare_runs  # noqa: E402
from naspipe.wire.reports import Observer  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

OPTIMIZERS = {"SGD": (0.05, {"momentum": 0.9, "weight_decay": 1e-4}), "Adam": (1e-3, {})}
CASES = [(4, 1, ""), (4, 2, "3x"), (4, 3, ""), (1, 4, ""), (4, 1, "2x"), (1, 4, "2x")]
"""Stages before and after the end, and the memory budget of both parts."""


class Ends(Observer):
    """A run's observer that asks for its end, as SIGTERM does, at the loss of one step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`naspipe.wire.ports.LaunchObserver`."""
        if sequence_id == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def train(named: Workload, optimizer: str, steps: int, path: Path, **how: Any) -> Path:
    """One run, or what is left of it; returns its directory."""
    lr, options = OPTIMIZERS[optimizer]
    run = naspipe.train(
        named.space, named.data, named.loss, steps=steps, run_dir=path, optimizer=optimizer,
        lr=lr, optimizer_options=options, **how,
    )  # fmt: skip
    return run.directory.path


def resumed(
    named: Workload,
    optimizer: str,
    steps: int,
    whole: Path,
    case: tuple[int, int, str],
    backward: str,
) -> dict[str, Any]:
    """A run that is ended after a third of its steps on some stages and goes on on others."""
    first, then, budget = case
    start, said = time.monotonic(), ""
    path = whole.with_name(f"{first}-{then}-{budget}")
    every = {
        "checkpoint_every": 10,
        "memory_budget": budget,
        "window": 8,
        "backward": backward,
    }
    try:
        ends = Ends(steps // 3)
        train(named, optimizer, steps, path, stages=first, execution=every, observer=ends)
        verdict = "it was not interrupted"
    except naspipe.NaspipeError as error:
        said = str(error).split(";")[0]
        train(named, optimizer, steps, path, stages=then, resume=True, execution=every)
        verdict = str(compare_runs([whole, path])[0])
    seconds = round(time.monotonic() - start, 1)
    row = {"stages": [first, then], "budget": budget}
    return {**row, "ended": said, "seconds": seconds, "verdict": verdict}


def write(output: Path, rows: list[dict[str, Any]]) -> None:
    """Write what there is by now, a case a line."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("[\n " + ",\n ".join(map(json.dumps, rows)) + "\n]\n")


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--spaces", nargs="*", default=["nlp.c3", "cv.c3"])
    parser.add_argument("--optimizers", nargs="*", choices=OPTIMIZERS, default=[*OPTIMIZERS])
    parser.add_argument("--backward", choices=("whole", "split"), default="whole")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/resume.json")
    arguments = parser.parse_args()
    rows = []
    for name, optimizer in itertools.product(arguments.spaces, arguments.optimizers):
        named = tiny_workload(name)
        with tempfile.TemporaryDirectory() as scratch:
            whole = train(named, optimizer, arguments.steps, Path(scratch) / "whole")
            for case in CASES:
                found = resumed(named, optimizer, arguments.steps, whole, case, arguments.backward)
                how = {"optimizer": optimizer, "backward": arguments.backward}
                rows.append({"space": name, **how, **found})
                print(rows[-1], flush=True)
                write(arguments.output, rows)
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
