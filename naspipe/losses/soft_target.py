"""The label's loss, and the divergence from the teacher's softened scores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

PlainLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class SoftTarget:
    """Knowledge distillation (Hinton et al. 2015, section 2)::

        loss(output, target) + weight * T² * KL(softmax(taught / T) || softmax(output / T))

    The divergence is summed over classes (dimension 1) and averaged over the batch.

    Args:
        loss: of an output and the batch field ``target``; cross entropy by default.
        temperature: T. Larger ones show more of how the teacher ranks wrong classes.
        weight: of the divergence.
    """

    same_shapes = True
    """The teacher has the student's classes."""

    def __init__(
        self, loss: PlainLoss | None = None, *, temperature: float = 4.0, weight: float = 0.1
    ) -> None:
        self._loss = loss or nn.CrossEntropyLoss()
        self._temperature, self._weight = temperature, weight
        self.record = {"temperature": temperature, "weight": weight}
        """What of it is part of a run's definition."""

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Without a teacher: where the student is validated."""
        return self._loss(output, target)

    def distill(
        self, output: torch.Tensor, taught: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """With the teacher's scores for the same batch; both of shape (batch, classes, ...)."""
        t = self._temperature
        own, other = functional.log_softmax(output / t, 1), functional.log_softmax(taught / t, 1)
        divergence = functional.kl_div(own, other, reduction="batchmean", log_target=True)
        return self._loss(output, target) + self._weight * t * t * divergence
