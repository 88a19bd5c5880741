"""Another loss, times what the paths of a student are expected to cost."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from naspipe.mixed.rounds import ARCHITECTURE, FIELD
from naspipe.runtime.jobs.losses import Loss, distilled_fields, distilling, loss_fields


class CostTerm:
    """ProxylessNAS's loss (Cai et al. 2019, as published in its code), in architecture rounds::

        loss * weight * (log(expected operations) / log(reference)) ** power

    In weight rounds it is the loss alone. For spaces of :func:`naspipe.mixed.student` that have a
    table of operations: their last layer hands the quotient on, behind its output.

    Args:
        loss: of a student of a teacher; the mean square of the difference by default.
        weight: of the product.
        power: of the quotient. Larger ones make dear paths dearer.
    """

    needs_cost = True
    """Called with a cost behind the output."""

    def __init__(self, loss: Any = None, *, weight: float = 1.0, power: float = 0.6) -> None:
        self._distill: Loss = functional.mse_loss if loss is None else distilling(loss)
        self._loss = loss
        self._weight, self._power = weight, power
        self.fields = (*(() if loss is None else loss_fields(loss)), FIELD)
        self.distilled_fields = (*(() if loss is None else distilled_fields(loss)), FIELD)
        of = {} if loss is None else {"loss": type(loss).__qualname__}
        self.record = {**of, "weight": weight, "power": power}
        """What of it is part of a run's definition."""

    def __call__(
        self, output: torch.Tensor, cost: torch.Tensor, *fields: torch.Tensor
    ) -> torch.Tensor:
        """Without a teacher: an output that teaches itself, unless the loss has a form for it."""
        *own, kind = fields
        if callable(self._loss):
            return self._with_cost(self._loss(output, *own), cost, kind)
        return self._with_cost(self._distill(output, output.detach(), *own), cost, kind)

    def distill(
        self,
        output: torch.Tensor,
        cost: torch.Tensor,
        taught: torch.Tensor,
        *fields: torch.Tensor,
    ) -> torch.Tensor:
        """With the teacher's output; the last field is the kind of the round."""
        *own, kind = fields
        return self._with_cost(self._distill(output, taught, *own), cost, kind)

    def _with_cost(
        self, loss: torch.Tensor, cost: torch.Tensor, kind: torch.Tensor
    ) -> torch.Tensor:
        if int(kind) != ARCHITECTURE:
            return loss
        return loss * self._weight * cost**self._power
