"""Where a run first leaves the plain loop, told as ``naspipe compare`` tells it."""

from __future__ import annotations

import torch

from naspipe.config.rules import Frozen
from naspipe.store.checkpoints import Checkpoint
from naspipe.store.compare import Comparison, RecordedRun
from naspipe.store.differences import checkpoint_differences, loss_differences
from naspipe.store.losses import Loss
from naspipe.store.shards import RawTensor
from tests.oracle import bits

NAMES = {
    "torch.float64": "F64", "torch.float32": "F32", "torch.bfloat16": "BF16",
    "torch.int64": "I64", "torch.int32": "I32", "torch.uint8": "U8", "torch.bool": "BOOL",
}  # fmt: skip


def recorded(oracle, space, stream):
    """The oracle's losses and final state, in the form that a run leaves them.

    Layers without state have no versions.
    """
    losses = [
        Loss(0, y, float(loss), bits(loss)[2][::-1].hex()) for y, loss in enumerate(oracle.losses)
    ]
    tensors, scalars, versions = {}, {}, {}
    stateful = {(block, candidate) for block, candidate, _ in oracle.tensors()}
    for y, choices in enumerate(stream):
        for block, candidate in enumerate(space.chain(choices)):
            is_written = (block, candidate) in stateful
            is_written &= not isinstance(space.rules[block], Frozen)
            versions[f"0/{space.label(block, candidate)}"] = y if is_written else -1
    for (block, candidate, name), value in oracle.tensors().items():
        key = f"0/{space.label(block, candidate)}/{name}"
        if isinstance(value, torch.Tensor):
            dtype, shape, data = bits(value)
            tensors[key] = RawTensor(NAMES[dtype], shape, data)
        else:
            scalars[key] = value
    return losses, Checkpoint(len(oracle.losses), tensors, versions, scalars)


def first_difference(expected, run_directory):
    """A comparison of a run with what :func:`recorded` returned; prints as ``IDENTICAL``, or
    names the first step and layer that differ."""
    losses, checkpoint = expected
    run = RecordedRun(run_directory)
    differences = [
        *loss_differences(losses, run.losses, run.labels),
        *checkpoint_differences(checkpoint, run.checkpoint(), run.labels),
    ]
    ordered = tuple(sorted(differences, key=lambda difference: difference.key))
    return Comparison(run.path, differences=ordered)
