"""Every real space, optimizer, recompute setting and sampler against the plain loop, bit for bit.

The full product behind tests/equivalence/test_real_spaces.py; writes artifacts/bits/result.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.tiny_workload import tiny_workload  # noqa: E402
from tests.equivalence.harness import check  # noqa: E402

OPTIMIZERS = {"SGD": (0.05, {"momentum": 0.9, "weight_decay": 1e-4}), "Adam": (1e-3, {})}


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--samplers", nargs="+", default=["uniform"])
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--backward", choices=("whole", "split"), default="whole")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/bits/result.json")
    arguments = parser.parse_args()
    rows = []
    cases = itertools.product(("nlp.c3", "cv.c3"), OPTIMIZERS, (False, True), arguments.samplers)
    for name, optimizer, recompute, sampler in cases:
        named = tiny_workload(name)
        lr, options = OPTIMIZERS[optimizer]
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(
                    Path(scratch), named.space, named.data, named.loss, steps=arguments.steps,
                    stages=arguments.stages, optimizer=optimizer, lr=lr, options=options,
                    sampler=sampler,
                    execution={"recompute": recompute, "backward": arguments.backward},
                )  # fmt: skip
                verdict = "IDENTICAL"
            except AssertionError as error:
                verdict = str(error)
        rows.append(
            {
                "space": name, "optimizer": optimizer, "recompute": recompute,
                "sampler": sampler, "backward": arguments.backward, "stages": arguments.stages,
                "steps": arguments.steps,
                "seconds": round(time.monotonic() - start, 1), "verdict": verdict,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
