"""A loss that is infinite or not a number: what the recipe wants then."""

from __future__ import annotations

import torch

from naspipe.core.errors import NotFiniteError
from naspipe.runtime.blocks.segment import Gradient
from naspipe.runtime.devices.device_waits import Wait, on_host


def first_gradient(loss: torch.Tensor, nonfinite: str, sequence_id: int) -> Gradient:
    """What a backward starts with; None for a step whose parameters stay as they are.

    Args:
        loss: of one pass.
        nonfinite: the recipe's choice: ``stop``, ``skip`` or ``keep``.
        sequence_id: the subnet, for the message.

    Raises:
        NotFiniteError: when the choice is to stop.
    """
    if nonfinite == "keep" or bool(on_host(torch.isfinite(loss).all(), Wait.FINITE)):
        return torch.ones_like(loss)
    if nonfinite == "skip":
        return None
    raise NotFiniteError(
        f"subnet {sequence_id}: expected a finite loss, found {float(loss):g}; choose a lower lr, "
        f"or --set nonfinite=skip (its layers stay as they are) or keep (train on)"
    )
