"""CutMix (Yun et al. 2019): a box of each image comes from another one.

The loss counts both classes by the areas that they have. Run it: ``python examples/cutmix.py``
"""

from __future__ import annotations

import torch
from digits_parts import Digits, accuracy, space
from torch.nn import functional
from torch.utils.data import default_collate

import naspipe as npp


def cut(items):
    """A batch in which one box, the same in all images, is that of another image."""
    images, target = default_collate(items)
    order = torch.randperm(len(target))
    height, width = images.shape[-2:]
    side = (1 - torch.rand(())).sqrt()  # of the box, as a share of the image's
    tall, wide = int(height * side), int(width * side)
    top = int(torch.randint(0, height - tall + 1, ()))
    left = int(torch.randint(0, width - wide + 1, ()))
    box = (..., slice(top, top + tall), slice(left, left + wide))
    pasted = images.clone()
    pasted[box] = images[order][box]
    share = torch.full((len(target),), 1 - tall * wide / (height * width))
    return {"input": pasted, "target": target, "other": target[order], "share": share}


def cutmix_loss(output, target, other, share):
    """The cross entropy of both classes, each counted by its area."""
    first = functional.cross_entropy(output, target, reduction="none")
    second = functional.cross_entropy(output, other, reduction="none")
    return (share * first + (1 - share) * second).mean()


def main(run_dir="runs/cutmix", steps=100, stages=2):
    """Train; returns the run."""
    return npp.train(
        space(),
        npp.from_dataset(Digits(), batch_size=64, collate_fn=cut),
        cutmix_loss,
        loss_fields=("target", "other", "share"),
        metrics={"accuracy": accuracy},
        optimizer_options={"momentum": 0.9},
        steps=steps,
        stages=stages,
        run_dir=run_dir,
    )


if __name__ == "__main__":
    run = main()
    print(f"loss {run.losses[-1]:.3f}, accuracy {run.metrics['accuracy'][-1]:.2f}")
