"""Which steps train weights and which architecture parameters, and on which data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import full_name

Batches = Callable[[int, int], Mapping[str, torch.Tensor]]

FIELD = "round"
"""The batch field that says of which kind a batch's step is."""

WEIGHTS, ARCHITECTURE = 0, 1
"""Kinds of rounds."""


class Rounds:
    """Data of two kinds of rounds: each step is of one kind, by its number alone.

    From step ``start`` on, the last of each ``every`` steps is an architecture round, on the next
    held-out batch. All others are weight rounds, on the next batch of the data; none is left out.

    Example::

        data = npp.mixed.Rounds(train, held_out, every=5, start=steps // 4)

    Args:
        data: (seed, number) -> named tensors.
        held_out: so, too; of samples that the data do not have.
        every: how often an architecture round comes.
        start: the step before which there is none.
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
        self.record = {
            **_said(data), "held_out": _said(held_out), "every": every, "start": start,
            "batches": batches,
        }  # fmt: skip
        """What of it is part of a run's definition."""

    def kind(self, step: int) -> int:
        """Of a step: :data:`WEIGHTS` or :data:`ARCHITECTURE`."""
        place = step - self._start
        return ARCHITECTURE if place >= 0 and (place + 1) % self._every == 0 else WEIGHTS

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        """The batch of a pass, with the field ``round``; made when another field is asked for."""
        step, micro = divmod(number, self._batches)
        held_out = max(0, step - self._start) // self._every
        kind = self.kind(step)
        before = held_out if kind == ARCHITECTURE else step - held_out
        return _Batch(kind, partial(self._sources[kind], seed, before * self._batches + micro))


class _Batch(Mapping[str, torch.Tensor]):
    """A batch and its round. Stages that only ask for the round make nothing else."""

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


def _said(data: Batches) -> dict[str, Any]:
    """What data say of themselves, or their name."""
    return dict(getattr(data, "record", None) or {"name": full_name(data)})
