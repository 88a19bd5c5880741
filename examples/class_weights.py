"""Class weights: few images of some classes, whose losses count more.

The data set hands out a weight beside the image and its class; the loss is called with it. Run it:
``python examples/class_weights.py``
"""

from __future__ import annotations

import torch
from digits_parts import Digits, accuracy, space
from torch.nn import functional
from torch.utils.data import Dataset

import naspipe as npp


class Unbalanced(Dataset):
    """Digits, but of the classes 5 to 9 every eighth image only; weights make up for it."""

    def __init__(self):
        self.digits = Digits()
        targets = self.digits.targets
        rare = torch.arange(len(targets)) % 8 > 0
        self.rows = torch.nonzero((targets < 5) | ~rare).flatten().tolist()
        counts = torch.bincount(targets[self.rows], minlength=10)
        self.weights = counts.sum() / (10.0 * counts)

    def __len__(self):
        """How many are left."""
        return len(self.rows)

    def __getitem__(self, row):
        """An image, its class and the weight of that."""
        image, target = self.digits[self.rows[row]]
        return image, target, self.weights[target]


def weighted_loss(output, target, weight):
    """The mean by weight, as ``CrossEntropyLoss(weight=...)`` has it."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses * weight).sum() / weight.sum()


def rare_share(output, target, weight):
    """The share of a batch that is taken for a rare class."""
    return (output.argmax(1) >= 5).float().mean()


def main(run_dir="runs/class-weights", steps=100, stages=2):
    """Train; returns the run."""
    fields = ("input", "target", "weight")
    return npp.train(
        space(),
        npp.from_dataset(Unbalanced(), batch_size=64, fields=fields, drop_last=True),
        weighted_loss,
        loss_fields=("target", "weight"),
        metrics={"accuracy": accuracy, "rare": rare_share},
        optimizer_options={"momentum": 0.9},
        steps=steps,
        stages=stages,
        run_dir=run_dir,
    )


if __name__ == "__main__":
    run = main()
    print(f"loss {run.losses[-1]:.3f}, taken for a rare class {run.metrics['rare'][-1]:.2f}")
