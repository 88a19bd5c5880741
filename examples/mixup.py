"""Mixup (Zhang et al. 2018): each image is laid over another one, and the loss takes both classes.

``collate_fn`` mixes. Its draws are keyed by the number of the batch, so a resume mixes the same
images in the same shares. Run it: ``python examples/mixup.py``
"""

from __future__ import annotations

import torch
from digits_parts import Digits, accuracy, space
from torch.nn import functional
from torch.utils.data import default_collate

import naspipe as npp

ALPHA = 0.2


def mixed(items):
    """A batch of images laid over one another, with both classes and the share of the first."""
    images, target = default_collate(items)
    order = torch.randperm(len(target))
    share = torch.distributions.Beta(ALPHA, ALPHA).sample((len(target),))
    part = share[:, None, None, None]
    return {
        "input": part * images + (1 - part) * images[order],
        "target": target,
        "other": target[order],
        "share": share,
    }


def unmixed(items):
    """The same fields of images as they are, to validate by."""
    images, target = default_collate(items)
    share = torch.ones(len(target))
    return {"input": images, "target": target, "other": target, "share": share}


def mixup_loss(output, target, other, share):
    """The cross entropy of both classes, each counted by its share."""
    first = functional.cross_entropy(output, target, reduction="none")
    second = functional.cross_entropy(output, other, reduction="none")
    return (share * first + (1 - share) * second).mean()


def main(run_dir="runs/mixup", steps=100, stages=2):
    """Train; returns the run."""
    return npp.train(
        space(),
        npp.from_dataset(Digits(), batch_size=64, collate_fn=mixed, workers=2),
        mixup_loss,
        loss_fields=("target", "other", "share"),
        metrics={"accuracy": accuracy},
        held_out=npp.from_dataset(
            Digits(held_out=True), batch_size=99, shuffle=False, collate_fn=unmixed
        ),
        optimizer_options={"momentum": 0.9},
        steps=steps,
        stages=stages,
        run_dir=run_dir,
        execution={"validate_every": steps},
    )


if __name__ == "__main__":
    run = main()
    print(f"loss {run.losses[-1]:.3f}, held out: {dict(run.validations[-1].scores)}")
