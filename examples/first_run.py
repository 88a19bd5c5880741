"""First run: one supernet on one stage process and on two, and the bits of both are the same.

Run it: ``python examples/first_run.py``
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

import naspipe as npp
from naspipe.data import open_data


class Residual(nn.Module):
    """Two linear layers beside a shortcut: (batch, 64) to the same."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)
        )

    def forward(self, x):
        """The same shape."""
        return x + self.layers(x)


stem = npp.Shared("stem", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), rule=npp.Lag(2))
blocks = [npp.Block([lambda w=w: Residual(w) for w in (32, 64, 128, 256)]) for _ in range(6)]
space = npp.Space("residuals", [stem, *blocks, npp.Shared("head", lambda: nn.Linear(64, 10))])


def train(run_dir, steps, stages):
    """The same definition, whatever ``stages`` are; returns the run."""
    return npp.train(
        space,
        open_data("digits"),
        nn.CrossEntropyLoss(),
        optimizer="Adam",
        lr=0.001,
        sampler="spaced:2",  # no candidate again within two subnets: two can be under way
        seed=1,
        steps=steps,
        stages=stages,
        run_dir=run_dir,
    )


def main(run_dir="runs/first", steps=200, stages=2):
    """Train twice; returns both runs and what their comparison says."""
    runs = [train(Path(run_dir) / f"{n}-stages", steps, n) for n in (1, stages)]
    (comparison,) = npp.compare_runs([run.path for run in runs])
    return runs, comparison


if __name__ == "__main__":
    runs, comparison = main()
    print(f"loss {runs[0].losses[0]:.3f} to {runs[0].losses[-1]:.3f} on 1 and on 2: {comparison}")
