"""Architecture parameters: how they are marked among a layer's parameters, and their optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import full_name


class Alpha(nn.Parameter):
    """One number for each candidate of a layer; paths are drawn from their softmax."""


class PairAlpha(Alpha):
    """Alphas of which a step changes two without changing the path weights of the others.

    After the step, the same number is added to all alphas with a nonzero gradient, so that the sum
    of their exponentials does not change.
    """


class _OfAlphas(torch.optim.Adam):
    """Adam, with the correction that :class:`PairAlpha` needs after each step."""

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
    """Return Adam without decay for alphas, with a constant rate, unlike that of the weights."""
    first, second = alpha_betas
    return _OfAlphas([{"params": list(alphas)}], lr=alpha_lr, betas=(first, second))


class WithAlphas(torch.optim.Optimizer):
    """Combines the optimizer of a layer's weights, whose group is first, and that of its alphas.

    Neither changes parameters without a gradient or their state: no decay, no momentum. Each is
    made for one group of parameters, which may be empty.
    """

    def __init__(self, weights: torch.optim.Optimizer, alphas: torch.optim.Optimizer) -> None:
        super().__init__([*weights.param_groups, *alphas.param_groups], {})
        self._parts = weights, alphas
        for part in self._parts:
            self.state.update(part.state)  # some create it in their constructor
            part.state = self.state  # shared, so that restored state is used

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


Batches = Callable[[int, int], Mapping[str, torch.Tensor]]

FIELD = "round"
"""The batch field that holds the kind of a batch's step."""

WEIGHTS, ARCHITECTURE = 0, 1
"""Kinds of rounds."""


class Rounds:
    """Data for two kinds of rounds: the kind of each step depends only on its number.

    From step ``start`` on, the last of each ``every`` steps is an architecture round, with the next
    held-out batch. All others are weight rounds, with the next batch of the data; none is skipped.

    Example::

        data = npp.mixed.Rounds(train, held_out, every=5, start=steps // 4)

    Args:
        data: (seed, number) -> named tensors.
        held_out: the same, with samples that are not in the data.
        every: interval of architecture rounds, in steps.
        start: step before which there are no architecture rounds.
        batches: micro-batches of a step.

    Raises:
        ConfigError: for numbers that are too small.
    """

    def __init__(
        self, data: Batches, held_out: Batches, *, every: int = 5, start: int = 0, batches: int = 1
    ) -> None:
        if every < 1 or batches < 1 or start < 0:
            raise ConfigError(
                f"rounds: expected every and batches of 1 or more and start of 0 or more, found "
                f"every={every}, batches={batches}, start={start}"
            )
        self._sources = data, held_out
        self._every, self._start, self._batches = every, start, batches
        self.info = getattr(data, "info", {})
        judged = getattr(data, "validation", None)
        self.validation = partial(_of_weights, judged) if judged else None
        own, other = (
            dict(getattr(each, "record", None) or {"name": full_name(each)})
            for each in (data, held_out)
        )
        numbers = {"every": every, "start": start, "batches": batches}
        self.record: dict[str, Any] = {**own, "held_out": other, **numbers}
        """Its part of a run's definition."""

    def kind(self, step: int) -> int:
        """Return the kind of a step: :data:`WEIGHTS` or :data:`ARCHITECTURE`."""
        place = step - self._start
        return ARCHITECTURE if place >= 0 and (place + 1) % self._every == 0 else WEIGHTS

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        """Return the batch of a pass, with the field ``round``; other fields are made lazily."""
        step, micro = divmod(number, self._batches)
        held_out = max(0, step - self._start) // self._every
        kind = self.kind(step)
        before = held_out if kind == ARCHITECTURE else step - held_out
        return _Batch(kind, partial(self._sources[kind], seed, before * self._batches + micro))


class _Batch(Mapping[str, torch.Tensor]):
    """A batch and its round. Stages that only read the round compute no other field."""

    def __init__(self, kind: int, make: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._kind = torch.tensor(kind)
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, torch.Tensor]:
        return self._make()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._kind if name == FIELD else self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._made
        yield FIELD

    def __len__(self) -> int:
        return len(self._made) + 1


def _of_weights(data: Batches, seed: int, number: int) -> Mapping[str, torch.Tensor]:
    return _Batch(WEIGHTS, partial(data, seed, number))
