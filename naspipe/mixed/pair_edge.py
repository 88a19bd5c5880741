"""A mixed edge whose architecture rounds run two sampled paths (ProxylessNAS, section 3.2.1).

The other candidates are as if they were not there: they are not run, and keep their path weights.
With q for the softmax of the two alphas and the gates of :mod:`naspipe.mixed.mixed_edge`::

    of_alpha[a] = q[a] * q[b] * (of_gates[a] - of_gates[b])        of_alpha[b] = -of_alpha[a]

Behind the step both are moved together by as much as puts their share of the whole back; see
:class:`naspipe.mixed.alphas.PairAlpha`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from naspipe.mixed.alphas import PairAlpha
from naspipe.mixed.mixed_edge import MixedEdge


class PairEdge(MixedEdge):
    """A :class:`MixedEdge` that needs the memory of two candidates, however many it has.

    The draws of an architecture round are the first three of the forward, in host memory: one
    candidate by the softmax of ``alpha``; another one by the softmax of the others; and which of
    the two is the output, by the softmax of the two in the order of candidates. With a table of
    operations their cost is what is expected of the two.
    """

    kind = PairAlpha

    def _learned(self, x: torch.Tensor) -> tuple[torch.Tensor, Sequence[int] | None]:
        if self.alpha is None:
            return super()._learned(x)
        alpha, first = self.alpha.detach().cpu(), self._draw()
        others = alpha.index_fill(0, torch.tensor([first]), -torch.inf)
        pair = sorted((first, int(torch.multinomial(others.softmax(0), 1))))
        place = int(torch.multinomial(alpha[pair].softmax(0), 1))
        outputs = [self._through(number, x, number == pair[place]) for number in pair]
        found: torch.Tensor = _PairOfGates.apply(self.alpha, pair, place, *outputs)  # type: ignore[no-untyped-call]
        return found, pair


class _PairOfGates(torch.autograd.Function):
    """One of two outputs; its gradient goes on to it, and to the two alphas by both."""

    @staticmethod
    def forward(
        ctx: Any, alpha: torch.Tensor, pair: Sequence[int], place: int, *outputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(alpha, *outputs)
        ctx.pair, ctx.place = pair, place
        return outputs[place].view_as(outputs[place])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        alpha, *outputs = ctx.saved_tensors
        share, given = alpha[ctx.pair].softmax(0), gradient.to(alpha.dtype)
        one, other = ((given * output.to(alpha.dtype)).sum() for output in outputs)
        of_one = share[0] * share[1] * (one - other)
        of_alpha = torch.zeros_like(alpha)
        of_alpha[ctx.pair[0]], of_alpha[ctx.pair[1]] = of_one, -of_one
        others = (gradient if number == ctx.place else None for number in range(2))
        return of_alpha, None, None, *others
