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

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.frontend.workloads import find_workload  # noqa: E402
from naspipe.trace.compare import compare_runs  # noqa: E402

OPTIMIZERS = {"SGD": (0.05, {"momentum": 0.9, "weight_decay": 1e-4}), "Adam": (1e-3, {})}
STAGES = [(4, 1), (4, 3), (1, 4), (2, 2)]


class Ends:
    """A run's observer that asks for its end, as Ctrl-C does, at the loss of one step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        if sequence_id == self.step:
            os.kill(os.getpid(), signal.SIGINT)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        pass

    def on_note(self, text: str) -> None:
        pass


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/resume.json")
    arguments = parser.parse_args()
    rows = []
    for name, optimizer in itertools.product(("nlp.c3", "cv.c3"), OPTIMIZERS):
        named = find_workload(name, "tiny", None, None)
        lr, options = OPTIMIZERS[optimizer]
        with tempfile.TemporaryDirectory() as scratch:

            def train(path: str, at: str = scratch, **kw: object) -> Path:
                run = naspipe.train(
                    named.space, named.data, named.loss, steps=arguments.steps, run_dir=f"{at}/{path}",
                    optimizer=optimizer, lr=lr, optimizer_options=options, **kw,
                )  # fmt: skip
                return run.directory.path

            whole = train("whole")
            for first, then in STAGES:
                start, path, said = time.monotonic(), f"{first}-{then}", ""
                every = {"checkpoint_every": 20}
                try:
                    train(path, stages=first, execution=every, observer=Ends(arguments.steps // 3))
                    verdict = "it was not interrupted"
                except naspipe.NaspipeError as error:
                    said = str(error).split(";")[0]
                    found = train(path, stages=then, resume=True, execution=every)
                    verdict = str(compare_runs([whole, found])[0])
                rows.append(
                    {
                        "space": name, "optimizer": optimizer, "stages": [first, then],
                        "ended": said, "seconds": round(time.monotonic() - start, 1),
                        "verdict": verdict,
                    }
                )  # fmt: skip
                print(rows[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
