"""Architecture parameters: which of a layer's parameters they are, and how they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn


class Alpha(nn.Parameter):
    """One number for each candidate of a layer; paths are drawn from their softmax."""


class PairAlpha(Alpha):
    """Alphas of which a step changes two, without a change of the others' path weights.

    Behind the step, the same number is added to all that had a gradient other than 0, so that the
    sum of their exponentials is what it was.
    """


class _OfAlphas(torch.optim.Adam):
    """Adam, and what kinds of alphas want behind its step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        alphas = [each for group in self.param_groups for each in group["params"]]
        before = {
            each: each.clone()
            for each in alphas
            if isinstance(each, PairAlpha) and each.grad is not None
        }
        super().step(closure)
        for alpha, old in before.items():
            is_changed = torch.ne(alpha.grad, 0)  # type: ignore[arg-type]  # it has one
            if is_changed.any():
                offset = old[is_changed].logsumexp(0) - alpha[is_changed].logsumexp(0)
                alpha.copy_(torch.where(is_changed, alpha + offset, alpha))


def alpha_optimizer(
    alphas: Iterable[nn.Parameter],
    alpha_lr: float = 1e-3,
    alpha_betas: Sequence[float] = (0.0, 0.999),
) -> torch.optim.Optimizer:
    """Adam without decay. Its rate is constant; that of the weights is set before each step."""
    first, second = alpha_betas
    return _OfAlphas([{"params": list(alphas)}], lr=alpha_lr, betas=(first, second))


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
            self.state.update(part.state)  # some make it in their constructor
            part.state = self.state  # what is restored here is found there

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        for part in self._parts:
            part.step()
