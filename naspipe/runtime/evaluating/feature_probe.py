"""How well features of a frozen network tell classes apart: k nearest neighbours, or ridge."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.evaluating.batch_sums import TOP

NEIGHBOURS, TEMPERATURE = 20, 0.07
"""Of the vote of neighbours (Wu et al. 2018, section 3.4), for small banks."""

RIDGE = 1e-3
"""Of the linear probe: what is added to the features' covariance, over its mean diagonal."""



def pooled(output: torch.Tensor) -> torch.Tensor:
    """Features (batch, features): the mean over pixels (dimensions 2, 3) or tokens (1)."""
    if output.dim() == 4:
        return output.mean((2, 3))
    return output.mean(1) if output.dim() == 3 else output


def probe_sums(
    kind: str, outputs: Sequence[Tensors], targets: Sequence[torch.Tensor], bank: int
) -> torch.Tensor:
    """A row of ``Sums``: five numbers of 64 bits; in place of a loss, 1 - the share that is right.

    Args:
        kind: ``knn`` or ``ridge``.
        outputs: of every batch, the first tensor of each counts.
        targets: whole numbers of shape (batch,), of every batch.
        bank: the first so many batches are learnt from; the others are judged.
    """
    features = [pooled(output[0]).double() for output in outputs]
    known, asked = torch.cat(features[:bank]), torch.cat(features[bank:])
    labels, wanted = torch.cat(list(targets[:bank])), torch.cat(list(targets[bank:]))
    classes = int(max(labels.max(), wanted.max())) + 1
    score = {"knn": _neighbours, "ridge": _ridge}[kind](known, labels, asked, classes)
    of_target = score.gather(1, wanted[:, None])
    earlier = torch.arange(classes, device=score.device) < wanted[:, None]
    ranks = ((score > of_target) | ((score == of_target) & earlier)).sum(1)
    count, right = float(len(wanted)), float((ranks < 1).sum())
    row = [count - right, count, count, right, float((ranks < TOP).sum())]
    return torch.tensor(row, dtype=torch.float64)


def _neighbours(
    known: torch.Tensor, labels: torch.Tensor, asked: torch.Tensor, classes: int
) -> torch.Tensor:
    """The vote of the nearest, weighted by the cosine."""
    likeness = functional.normalize(asked, dim=1) @ functional.normalize(known, dim=1).T
    nearest, which = likeness.topk(min(NEIGHBOURS, len(known)), dim=1)
    votes = functional.one_hot(labels[which], classes).double()
    return (votes * (nearest / TEMPERATURE).exp()[:, :, None]).sum(1)


def _ridge(
    known: torch.Tensor, labels: torch.Tensor, asked: torch.Tensor, classes: int
) -> torch.Tensor:
    """Least squares on the classes, in closed form, of standardised features and a constant."""
    mean, spread = known.mean(0), known.std(0).clamp_min(1e-6)
    x, y = (known - mean) / spread, functional.one_hot(labels, classes).double()
    covariance = x.T @ x
    damping = RIDGE * covariance.diagonal().mean()
    eye = torch.eye(len(covariance), dtype=x.dtype, device=x.device)
    weights = torch.linalg.solve(covariance + damping * eye, x.T @ (y - y.mean(0)))
    score: torch.Tensor = ((asked - mean) / spread) @ weights + y.mean(0)
    return score
