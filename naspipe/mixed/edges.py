"""A layer that holds several candidates and draws which of them runs (ProxylessNAS, section 3.2).

Weight rounds run only the drawn candidate. Architecture rounds run all of them, in order; the
output is still that of the drawn one, and only this one receives the gradient of the output. The
gradient of alpha is that of gates (1 for the drawn candidate, 0 for the others) that would multiply
the outputs; with p for the softmax of alpha::

    of_gates[i] = (d loss / d output * output[i]).sum()
    of_alpha = p * (of_gates - (p * of_gates).sum())
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from naspipe.config.errors import ConfigError
from naspipe.mixed.architecture import ARCHITECTURE, Alpha, PairAlpha


class MixedEdge(nn.Module):
    """Candidates of which each forward uses one, drawn from the softmax of ``alpha``.

    The draw is the first one of the forward: ``torch.multinomial(alpha.softmax(0), 1)``, in host
    memory. It is therefore keyed like every other draw of a block: by seed, step and block.

    Args:
        candidates: modules that map a tensor to a tensor of the same shape for all. A single one
            has no ``alpha``: it is a layer without a choice, whose weights also do not change in
            architecture rounds.
        operations: number of operations of each candidate; if given, their expectation is returned
            with the output.
        reference: for the last layer of a chain, whose cost is then log(expected) / log(reference).

    Raises:
        ConfigError: for a table of another length, or a reference whose logarithm is not above 0.
    """

    kind = Alpha

    def __init__(
        self,
        candidates: Sequence[nn.Module],
        operations: Sequence[float] | None = None,
        reference: float | None = None,
    ) -> None:
        super().__init__()
        if not candidates or (operations is not None and len(operations) != len(candidates)):
            raise ConfigError(
                f"mixed edge: expected the operations of each candidate, found "
                f"{len(operations or ())} for {len(candidates)} candidates"
            )
        if reference is not None and (operations is None or not reference > 1):
            raise ConfigError(
                f"mixed edge: expected a reference above 1 beside a table of operations, found "
                f"{reference}{'' if operations else ' and no table'}; see naspipe.mixed.operations"
            )
        self.candidates = nn.ModuleList(candidates)
        has_choice = len(candidates) > 1
        self.alpha = self.kind(torch.zeros(len(candidates))) if has_choice else None
        self.operations = None if operations is None else tuple(map(float, operations))
        self.reference = reference

    @property
    def path(self) -> int:
        """Index of the candidate with the greatest ``alpha``."""
        return 0 if self.alpha is None else int(self.alpha.argmax())

    @property
    def chosen(self) -> nn.Module:
        return self.candidates[self.path]

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        """Return the output of one candidate; with a table of operations, (output, cost).

        Args:
            x: input of the candidates.
            rest: the cost of the previous layers, if any, and the kind of the round. If empty, the
                layer acts as its chosen candidate.
        """
        if not rest:
            return self.chosen(x)
        *before, kind = rest
        learns = self.training and int(kind) == ARCHITECTURE
        among: Sequence[int] | None = None
        if learns:
            output, among = self._learned(x)
        else:
            output = self.candidates[self._draw() if self.training else self.path](x)
        if self.operations is None:
            return output
        return output, self._cost(before, learns, among, x.device)

    def _draw(self) -> int:
        if self.alpha is None:
            return 0
        return int(torch.multinomial(self.alpha.detach().cpu().softmax(0), 1))

    def _learned(self, x: torch.Tensor) -> tuple[torch.Tensor, Sequence[int] | None]:
        """Return an architecture round's output, and the candidates compared (None: all)."""
        drawn = self._draw()
        outputs = [self._through(at, x, at == drawn) for at in range(len(self.candidates))]
        if self.alpha is None:
            return outputs[0], None
        found: torch.Tensor = _Gates.apply(self.alpha, drawn, *outputs)  # type: ignore[no-untyped-call]
        return found, None

    def _through(self, number: int, x: torch.Tensor, is_drawn: bool) -> torch.Tensor:
        """Run a candidate without weight gradients; norms see the batch even if it is not drawn."""
        candidate = self.candidates[number]
        weights = {name: value.detach() for name, value in candidate.named_parameters()}
        with torch.set_grad_enabled(is_drawn and torch.is_grad_enabled()):
            output: torch.Tensor = functional_call(candidate, weights, (x,))
        return output

    def _cost(
        self,
        before: Sequence[torch.Tensor],
        learns: bool,
        among: Sequence[int] | None,
        device: torch.device,
    ) -> torch.Tensor:
        """Return the expected operations of this layer, or of ``among``, plus those ``before``."""
        alpha = torch.zeros(1, device=device) if self.alpha is None else self.alpha
        table = torch.tensor(self.operations, dtype=alpha.dtype, device=device)
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
            if among is not None:
                alpha, table = alpha[among], table[among]
            cost = (alpha.softmax(0) * table).sum()
            for each in before:
                cost = each + cost
            return cost.log() / math.log(self.reference) if self.reference else cost


class _Gates(torch.autograd.Function):
    """Selects the drawn output, which gets the gradient; alpha's gradient uses all outputs."""

    @staticmethod
    def forward(ctx: Any, alpha: torch.Tensor, drawn: int, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(alpha, *outputs)
        ctx.drawn = drawn
        return outputs[drawn].view_as(outputs[drawn])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        alpha, *outputs = ctx.saved_tensors
        share, given = alpha.softmax(0), gradient.to(alpha.dtype)
        gates = torch.stack([(given * output.to(alpha.dtype)).sum() for output in outputs])
        of_alpha = share * (gates - (share * gates).sum())
        others = (gradient if number == ctx.drawn else None for number in range(len(outputs)))
        return of_alpha, None, *others


class PairEdge(MixedEdge):
    """A :class:`MixedEdge` that needs the memory of two candidates, whatever their number.

    The draws of an architecture round are the first three of the forward, in host memory: one
    candidate from the softmax of ``alpha``; a second one from the softmax of the others; and which
    of the two is the output, from the softmax of the two in the order of candidates. With a table
    of operations, the cost is the expectation over the two.
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
    """Selects one of two outputs, which gets the gradient; the alphas' gradients use both."""

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
