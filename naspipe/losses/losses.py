"""Losses for students of a teacher; see the package's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.jobs.losses import Loss, distilled_fields, distilling, loss_fields
from naspipe.mixed.architecture import ARCHITECTURE, FIELD


class BYOL:
    """Bootstrap your own latent (Grill et al. 2020, equation 2), for vectors p and z::

        mean(2 - 2 * cosine(p, z))

    With :class:`naspipe.Views` each view learns from the other one, so that both directions are
    trained. There is no label.
    """

    fields = ()
    same_shapes = True
    """The teacher's output has the shape of the student's."""

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """Return the loss of predictions and the teacher's projections, both (batch, features)."""
        return (2.0 - 2.0 * functional.cosine_similarity(output, taught, dim=-1)).mean()


class Contrastive:
    """MoCo-v3's loss (Chen et al. 2021, section 3): InfoNCE over all samples of a step, symmetric.

    For queries q of one view and keys k of the other, with rows of unit length::

        2 * T * cross_entropy(q @ k.T / T, arange(len(q)))

    This is summed over pairs of views. The negatives of a sample are the other samples of the step,
    from any pass: it is one loss over the outputs of all passes.

    Args:
        temperature: T.
        views: number of views of each sample, as in :class:`naspipe.Views`.
        local: number of additional views, which have queries only.
    """

    fields = ()
    needs_teacher = True
    same_shapes = True

    def __init__(self, *, temperature: float = 0.2, views: int = 2, local: int = 0) -> None:
        self._temperature = temperature
        self._views = views
        self._local = local
        self.record = {"temperature": temperature, "views": views}
        """Its part of a run's definition."""
        if local:
            self.record |= {"local": local}

    def joined(
        self, outputs: Sequence[torch.Tensor], lessons: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the loss of the queries and keys of all passes, in their order.

        Args:
            outputs: outputs of the student, each of shape (batch, features).
            lessons: outputs of the teacher, the same number except for local views.
        """
        queries = _by_view(outputs, self._views + self._local)
        keys = _by_view(lessons, self._views)
        t, losses = self._temperature, []
        for number, query in enumerate(queries):
            for other, key in enumerate(keys):
                if other != number or self._views == 1:
                    labels = torch.arange(len(query), device=query.device)
                    logits = query @ key.T / t
                    losses.append(2.0 * t * functional.cross_entropy(logits, labels))
        return torch.stack(losses).sum()


def _by_view(passes: Sequence[torch.Tensor], views: int) -> list[torch.Tensor]:
    count = len(passes) // views
    found = [torch.cat(list(passes[view * count : (view + 1) * count])) for view in range(views)]
    return [functional.normalize(view, dim=-1) for view in found]


class CostTerm:
    """ProxylessNAS's loss (Cai et al. 2019, as published in its code), in architecture rounds::

        loss * weight * (log(expected operations) / log(reference)) ** power

    In weight rounds it is only the loss. It is for spaces of :func:`naspipe.mixed.student` with a
    table of operations, whose last layer returns the quotient after its output.

    Args:
        loss: a distillation loss; by default the mean squared difference.
        weight: factor of the product.
        power: exponent of the quotient. Larger values penalise expensive paths more.
    """

    needs_cost = True
    """It is called with a cost after the output."""

    def __init__(self, loss: Any = None, *, weight: float = 1.0, power: float = 0.6) -> None:
        self._distill: Loss = functional.mse_loss if loss is None else distilling(loss)
        self._loss = loss
        self._weight, self._power = weight, power
        self.fields = (*(() if loss is None else loss_fields(loss)), FIELD)
        self.distilled_fields = (*(() if loss is None else distilled_fields(loss)), FIELD)
        of = {} if loss is None else {"loss": type(loss).__qualname__}
        self.record = {**of, "weight": weight, "power": power}
        """Its part of a run's definition."""

    def __call__(
        self, output: torch.Tensor, cost: torch.Tensor, *fields: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss without a teacher; if it needs one, the output is its own target."""
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
        *own, kind = fields
        return self._with_cost(self._distill(output, taught, *own), cost, kind)

    def _with_cost(
        self, loss: torch.Tensor, cost: torch.Tensor, kind: torch.Tensor
    ) -> torch.Tensor:
        if int(kind) != ARCHITECTURE:
            return loss
        return loss * self._weight * cost**self._power


class DistilBert:
    """The loss of DistilBERT (Sanh et al. 2019, section 3)::

        soft * T² * KL(softmax(taught / T) || softmax(output / T)) + label * cross_entropy
            + cosine * (1 - cosine(hidden, taught hidden))

    The last blocks of both networks return a tuple (scores, hidden states) of shapes (batch,
    positions, words) and (batch, positions, features). Positions whose target is ``ignore_index``
    count only in the first and the last term.

    Args:
        temperature: T.
        soft: weight of the first term.
        label: weight of the second term.
        cosine: weight of the third term.
        ignore_index: target of positions that were not masked.
    """

    same_shapes = True
    wants_hidden = True
    """The input of the teacher's last block is also a target."""

    def __init__(
        self,
        *,
        temperature: float = 2.0,
        soft: float = 5.0,
        label: float = 2.0,
        cosine: float = 1.0,
        ignore_index: int = -100,
    ) -> None:
        self._temperature = temperature
        self._weights = soft, label, cosine
        self.ignore_index = ignore_index
        weights = {"soft": soft, "label": label, "cosine": cosine}
        self.record = {"temperature": temperature, **weights}
        """Its part of a run's definition."""
        self._label = nn.CrossEntropyLoss(ignore_index=ignore_index)

    def __call__(
        self, scores: torch.Tensor, hidden: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss without a teacher, for validation of the student."""
        loss: torch.Tensor = self._label(scores.flatten(0, -2), target.flatten())
        return loss

    def distill(
        self,
        scores: torch.Tensor,
        hidden: torch.Tensor,
        taught_scores: torch.Tensor,
        taught_hidden: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        t, (soft, label, cosine) = self._temperature, self._weights
        own, other = (
            functional.log_softmax(each.flatten(0, -2) / t, 1) for each in (scores, taught_scores)
        )
        divergence = functional.kl_div(own, other, reduction="batchmean", log_target=True)
        angle = functional.cosine_similarity(hidden, taught_hidden, dim=-1)
        return (
            soft * t * t * divergence
            + label * self(scores, hidden, target)
            + cosine * (1.0 - angle).mean()
        )


class HiddenStates:
    """Mean squared difference from the teacher's hidden states.

    Both networks return hidden states of shape (batch, positions, features) and a mask of shape
    (batch, positions) that is True at padding; padding does not count.
    """

    fields = ()
    needs_teacher = True

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return a loss without a teacher, for measuring the cost of layers."""
        return self.distill(hidden, mask, hidden.detach(), mask)

    def distill(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor,
        taught: torch.Tensor,
        taught_mask: torch.Tensor,
    ) -> torch.Tensor:
        is_word = (~mask).to(hidden.dtype)
        square = (hidden - taught).square().mean(-1)
        return (square * is_word).sum() / is_word.sum()


PlainLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class SoftTarget:
    """Knowledge distillation (Hinton et al. 2015, section 2)::

        loss(output, target) + weight * T² * KL(softmax(taught / T) || softmax(output / T))

    The divergence is summed over classes (dimension 1) and averaged over the batch.

    Args:
        loss: loss of an output and the batch field ``target``; cross entropy by default.
        temperature: T. Larger values reveal more of the teacher's ranking of wrong classes.
        weight: weight of the divergence.
    """

    same_shapes = True
    """The teacher has the student's classes."""

    def __init__(
        self, loss: PlainLoss | None = None, *, temperature: float = 4.0, weight: float = 0.1
    ) -> None:
        self._loss = loss or nn.CrossEntropyLoss()
        self._temperature, self._weight = temperature, weight
        self.record = {"temperature": temperature, "weight": weight}
        """Its part of a run's definition."""

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss without a teacher, for validation of the student."""
        return self._loss(output, target)

    def distill(
        self, output: torch.Tensor, taught: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss with the teacher's scores; both of shape (batch, classes, ...)."""
        t = self._temperature
        own, other = functional.log_softmax(output / t, 1), functional.log_softmax(taught / t, 1)
        divergence = functional.kl_div(own, other, reduction="batchmean", log_target=True)
        return self._loss(output, target) + self._weight * t * t * divergence
