"""Read the layers of a checkpoint, so that a plain loop can go on from there."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from naspipe.runtime.checkpoints.layer_bytes import aligned
from naspipe.trace.snapshots.snapshot import Checkpoint
from naspipe.verification.plain_layer import LayerState


def states_of(checkpoint: Checkpoint, passes: int) -> dict[str, LayerState]:
    """Every layer that a checkpoint holds, by label.

    Args:
        checkpoint: at the end of a step.
        passes: how many sequence IDs a step has.
    """
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    older: dict[str, dict[int, dict[str, torch.Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for name, raw in checkpoint.tensors.items():
        _, label, rest = name.split("/", 2)
        value = aligned(raw, checkpoint.strides.get(name))
        if rest.startswith("version/"):
            _, version, parameter = rest.split("/", 2)
            older[label][int(version)][parameter] = value
        else:
            values[label][rest] = value
    for name, scalar in checkpoint.scalars.items():
        _, label, rest = name.split("/", 2)
        values[label][rest] = scalar
    found = {}
    for key, newest in checkpoint.versions.items():
        label = key.split("/", 1)[1]
        versions = checkpoint.history.get(key, (newest,))[:-1]
        found[label] = LayerState(
            values[label],
            newest // passes,
            [(version // passes, older[label][version]) for version in versions],
        )
    return found
