"""One batch's share of a score: loss, targets, and how many of them come first or near the top."""

from __future__ import annotations

import torch

from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.devices.device_waits import Wait, on_host
from naspipe.runtime.jobs.losses import Loss, check_one_number, name_of_loss

TOP = 5


def batch_sums(
    loss: Loss, outputs: Tensors, target: torch.Tensor, fields: Tensors | None = None
) -> torch.Tensor:
    """One batch's row of ``Sums``: five numbers of 64 bits; the target is the loss's only field
    where none are given.

    Raises:
        ConfigError: when the loss is not one number.
    """
    mean = loss(*outputs, *((target,) if fields is None else fields))
    check_one_number(f"loss {name_of_loss(loss)}", mean)
    padding = getattr(loss, "padding", getattr(loss, "ignore_index", None))
    counts = target != padding if isinstance(padding, int) else torch.ones_like(target).bool()
    targets = float(on_host(counts.sum(), Wait.SCORE))
    whole = float(on_host(mean.double(), Wait.SCORE)) * targets if targets else 0.0
    row = [whole, targets, 0.0, 0.0, 0.0]
    scores = outputs[0]
    if not target.is_floating_point() and scores.shape[:-1] == target.shape and scores.dim() > 1:
        ranks = _ranks(scores.flatten(0, -2), target.flatten())[counts.flatten()]
        first, top = (float(on_host((ranks < n).sum(), Wait.SCORE)) for n in (1, TOP))
        row[2:] = [targets, first, top]
    return torch.tensor(row, dtype=torch.float64)


def _ranks(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How many classes come before the target's; of equal scores, the first class comes first.

    A target whose score is not a number comes last.
    """
    wanted = scores.gather(1, target.clamp(0, scores.size(1) - 1).unsqueeze(1))
    is_earlier = torch.arange(scores.size(1), device=scores.device) < target.unsqueeze(1)
    before = (scores > wanted) | ((scores == wanted) & is_earlier)
    return before.sum(1).masked_fill(wanted.isnan().squeeze(1), scores.size(1))
