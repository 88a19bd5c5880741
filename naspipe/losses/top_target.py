"""The label's loss, plus the divergence from only the teacher's greatest scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.config.errors import ConfigError

_MOST_CLASSES = 1 << 24
"""Up to this number, float32 represents every whole number exactly."""


def top_classes(scores: torch.Tensor, top: int) -> torch.Tensor:
    """Return the greatest ``top`` scores of (..., classes), as float32 of shape (..., 2, top).

    These are the scores, greatest first, and the numbers of their classes.
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
    """Return scores, and classes as integers, each of shape (..., top)."""
    values, classes = label.unbind(-2)
    return values, classes.long()


class KeepsTop(nn.Module):
    """A teacher's last block, which returns one tensor of scores; see :func:`top_classes`."""

    def __init__(self, block: nn.Module, top: int) -> None:
        super().__init__()
        self.block, self.top = block, top

    def forward(self, *inputs: Any) -> torch.Tensor:
        return top_classes(self.block(*inputs), self.top)


class TopTarget:
    """Distillation from a teacher's K greatest scores v of classes c, as in ``Teacher(top=K)``::

        loss(output, target) + weight * T² * sum_k p_k * (log p_k - log_softmax(output / T)[c_k])

    with p = softmax(v / T) over the K kept scores: the teacher's other probabilities are dropped
    and the rest is renormalised. The student's softmax is over all classes. The sum is averaged
    over the targets that count: all but the loss's ``padding`` or ``ignore_index``.

    Args:
        loss: loss of an output and the batch field ``target``; cross entropy by default.
        temperature: T.
        weight: weight of the divergence.
    """

    same_shapes = True
    """The teacher has the student's classes."""

    takes_top = True

    def __init__(self, loss: Any = None, *, temperature: float = 1.0, weight: float = 1.0) -> None:
        self._loss = nn.CrossEntropyLoss() if loss is None else loss
        self._temperature, self._weight = temperature, weight
        self._padding = getattr(loss, "padding", getattr(loss, "ignore_index", None))
        self.record = {"temperature": temperature, "weight": weight}
        """Its part of a run's definition."""

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss without a teacher, for validation of the student."""
        found: torch.Tensor = self._loss(output, target)
        return found

    def distill(
        self, output: torch.Tensor, taught: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss with the teacher's label for the same batch.

        Args:
            output: scores of shape (..., classes).
            taught: a label of shape (..., 2, K); see :func:`naspipe.losses.top_target.top_classes`.
            target: of shape (...), or of any other shape if all positions count.
        """
        t = self._temperature
        scores, classes = split_top(taught)
        expected = functional.log_softmax(scores / t, -1)
        found = functional.log_softmax(output / t, -1).gather(-1, classes)
        divergence = (expected.exp() * (expected - found)).sum(-1)
        if self._padding is not None and target.shape == divergence.shape:
            counts = (target != self._padding).to(divergence.dtype)
            mean = (divergence * counts).sum() / counts.sum()
        else:
            mean = divergence.mean()
        total: torch.Tensor = self(output, target) + mean * (self._weight * t * t)
        return total
