"""Where subnets come from.

Implementations: :class:`Sampler` are those of :mod:`naspipe.streams.samplers` and
:class:`naspipe.streams.from_file.FileSampler`; :class:`ExplorationStrategy` are those of
:mod:`naspipe.search.strategies`, NNI's (:mod:`naspipe.nni.strategy_thread`), or a user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

Choices = tuple[int, ...]
"""One choice per choice block."""


class Sampler(Protocol):
    """An endless iterator of subnets (``file:`` ends where its file does)."""

    def draw(self) -> Choices:
        """The next subnet."""
        ...

    def __iter__(self) -> Iterator[Choices]: ...

    def __next__(self) -> Choices: ...


class ExplorationStrategy(Protocol):
    """Proposes subnets, and learns from how they did."""

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        """The next subnet: one choice per choice block. Asked for in sequence order.

        None when it waits for the score of a subnet that is under way; it is asked again after
        the next score.
        """
        ...

    def observe(self, sequence_id: int, score: float) -> None:
        """How a subnet did; told in sequence order, ``delay`` subnets later."""
        ...
