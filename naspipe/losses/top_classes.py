"""A teacher's greatest scores and their classes in one tensor: a label of many classes, small.

Scores (0.5, 2, -1, 2) with K = 2 become ((2, 2), (1, 3)): two scores, and the classes that they are
of. Equal scores are kept in the order of their classes, the lower one first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError

_MOST_CLASSES = 1 << 24
"""Of which float32 holds every number."""


def top_classes(scores: torch.Tensor, top: int) -> torch.Tensor:
    """The greatest scores of the last dimension.

    Args:
        scores: of shape (..., classes).
        top: how many are kept.

    Returns:
        float32 of shape (..., 2, top): scores, greatest first, and the numbers of their classes.

    Raises:
        ConfigError: when there are fewer classes than are kept, or too many for float32.
    """
    classes = scores.shape[-1]
    if not top <= classes <= _MOST_CLASSES:
        raise ConfigError(
            f"teacher: expected {top} classes or more, as top={top} says, and at most "
            f"{_MOST_CLASSES}, found {classes}"
        )
    values, order = torch.sort(scores.float(), dim=-1, descending=True, stable=True)
    return torch.stack([values[..., :top], order[..., :top].float()], dim=-2)


def split_top(label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and classes as whole numbers, each of shape (..., top)."""
    values, classes = label.unbind(-2)
    return values, classes.long()


class KeepsTop(nn.Module):
    """A teacher's last block, of whose scores the greatest are kept.

    Args:
        block: returns one tensor of scores.
        top: how many.
    """

    def __init__(self, block: nn.Module, top: int) -> None:
        super().__init__()
        self.block, self.top = block, top

    def forward(self, *inputs: Any) -> torch.Tensor:
        """See :func:`top_classes`."""
        return top_classes(self.block(*inputs), self.top)
