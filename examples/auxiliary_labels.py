"""Auxiliary labels: a head with two outputs, and a loss that asks for two labels of each image.

The loss is called with both outputs, then with the batch fields in the order of ``loss_fields``.
Run it: ``python examples/auxiliary_labels.py``
"""

from __future__ import annotations

import torch
from digits_parts import Digits, space
from torch import nn
from torch.nn import functional

import naspipe as npp


class TwoHeads(nn.Module):
    """The class of a digit, and whether it has a closed loop (0, 6, 8, 9)."""

    def __init__(self):
        super().__init__()
        self.digit, self.loop = nn.Linear(256, 10), nn.Linear(256, 1)

    def forward(self, x):
        """Logits (batch, 10) and (batch,)."""
        flat = x.flatten(1)
        return self.digit(flat), self.loop(flat).squeeze(1)


def with_loop(item):
    """An item with a second label."""
    image, target = item
    loop = torch.isin(target, torch.tensor([0, 6, 8, 9]))
    return {"input": image, "target": target, "loop": loop.float()}


def two_losses(digit, loop, target, has_loop):
    """That of the digit, and a part of that of the loop."""
    main_loss = functional.cross_entropy(digit, target)
    return main_loss + 0.3 * functional.binary_cross_entropy_with_logits(loop, has_loop)


def loop_accuracy(digit, loop, target, has_loop):
    """The share of a batch whose loop is seen."""
    return ((loop > 0) == (has_loop > 0)).float().mean()


def main(run_dir="runs/auxiliary-labels", steps=100, stages=2):
    """Train; returns the run."""
    return npp.train(
        space(TwoHeads),
        npp.from_dataset(Digits(), batch_size=64, transform=with_loop),
        two_losses,
        loss_fields=("target", "loop"),
        metrics={"loop_accuracy": loop_accuracy},
        optimizer_options={"momentum": 0.9},
        steps=steps,
        stages=stages,
        run_dir=run_dir,
    )


if __name__ == "__main__":
    run = main()
    print(f"loss {run.losses[-1]:.3f}, loops seen {run.metrics['loop_accuracy'][-1]:.2f}")
