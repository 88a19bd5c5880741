"""A space and data of your own: layers of several kinds, and batches from a function.

A batch is a function of a seed and a number, so every stage can make it by itself. Run it:
``python examples/own_space.py``
"""

from __future__ import annotations

import torch
from torch import nn

import naspipe as npp


def waves(seed, number):
    """64 points of a noisy wave: input float32 (64, 2), target float32 (64, 1)."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
    points = torch.rand(64, 2, generator=draw) * 4 - 2
    noise = 0.05 * torch.randn(64, 1, generator=draw)
    return {"input": points, "target": torch.sin(points.prod(1, keepdim=True)) + noise}


class Step(nn.Module):
    """Adds to its input (batch, 32) what two layers make of it."""

    def __init__(self, activation):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 32), activation(), nn.Linear(32, 32))

    def forward(self, features):
        """The same shape: whatever comes next takes it from any candidate."""
        return features + self.layers(features)


choices = [lambda a=a: Step(a) for a in (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)]  # factories
blocks = [npp.Block(choices) for _ in range(6)]
stem = npp.Shared("stem", lambda: nn.Linear(2, 32), rule=npp.Lag(2))
space = npp.Space("waves", [stem, *blocks, npp.Shared("head", lambda: nn.Linear(32, 1))])


def main(run_dir="runs/waves", steps=300, stages=2):
    """Train; returns the run."""
    how = {"optimizer": "Adam", "lr": 0.003, "sampler": "spaced:2", "seed": 1}
    return npp.train(space, waves, nn.MSELoss(), steps=steps, stages=stages, run_dir=run_dir, **how)


if __name__ == "__main__":
    run = main()
    print(f"mean square {run.losses[0]:.3f} to {run.losses[-1]:.3f}")
    print("candidate 3 of block 2, with its weights:", run.layer(2, 3))
