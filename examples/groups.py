"""Two copies of the pipeline share the passes of every step, with the bits of one.

A step adds the gradients of eight batches. With two groups each computes four of them. Run it:
``python examples/groups.py``
"""

from __future__ import annotations

from pathlib import Path

from digits_parts import Digits, space
from torch import nn

import naspipe as npp


def train(run_dir, steps, passes, groups):
    """``passes`` belong to the definition, ``groups`` do not."""
    return npp.train(
        space(),
        npp.from_dataset(Digits(), batch_size=16),
        nn.CrossEntropyLoss(),
        optimizer_options={"momentum": 0.9},
        passes=f"accumulate:{passes}",
        groups=groups,
        steps=steps,
        run_dir=run_dir,
    )


def main(run_dir="runs/groups", steps=40, passes=8):
    """Train with one group and with two; returns the runs and their comparison."""
    runs = [train(Path(run_dir) / f"{n}-groups", steps, passes, n) for n in (1, 2)]
    (comparison,) = npp.compare_runs([run.path for run in runs])
    return runs, comparison


if __name__ == "__main__":
    runs, comparison = main()
    summed = sum(stage["summed_bytes"] for stage in runs[1].manifest["measured"]["stages"])
    print(f"one group and two: {comparison}; gradients handed on: {summed / 1e6:.1f} MB")
