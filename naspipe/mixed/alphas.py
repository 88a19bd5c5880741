"""Architecture parameters: which of a layer's parameters they are, and how they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn


class Alpha(nn.Parameter):
    """One number for each candidate of a layer; paths are drawn from their softmax."""


def alpha_optimizer(
    alphas: Iterable[nn.Parameter],
    alpha_lr: float = 1e-3,
    alpha_betas: Sequence[float] = (0.0, 0.999),
) -> torch.optim.Optimizer:
    """Adam without decay. Its rate is constant; that of the weights is set before each step."""
    first, second = alpha_betas
    return torch.optim.Adam([{"params": list(alphas)}], lr=alpha_lr, betas=(first, second))


class WithAlphas(torch.optim.Optimizer):
    """Two optimizers of one layer, as one: of weights, whose group comes first, and of alphas.

    Both leave parameters without a gradient alone, with their state: no decay, no momentum.

    Args:
        weights: made for one group of parameters, which may be empty.
        alphas: so, too.
    """

    def __init__(self, weights: torch.optim.Optimizer, alphas: torch.optim.Optimizer) -> None:
        super().__init__([*weights.param_groups, *alphas.param_groups], {})
        self._parts = weights, alphas
        for part in self._parts:
            part.state = self.state  # what is restored here is found there

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        for part in self._parts:
            part.step()
