"""What a job is made of beside data: losses in blocks, fields that come later, who holds what.

Implementations: :class:`Positions` is :class:`naspipe.runtime.jobs.positions.OnePipeline`;
:class:`Objective` is :class:`naspipe.runtime.blocks.objectives.EndObjective` (the
recipe's loss at the end of a chain) or a user's own; :class:`FieldSource` is a user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from naspipe.core.ids import StageId, WorkerId

Tensors = tuple[torch.Tensor, ...]


class Positions(Protocol):
    """Which worker, a process, holds which position of a pipeline."""

    @property
    def num_workers(self) -> int:
        """How many there are."""
        ...

    def worker(self, stage: StageId) -> WorkerId:
        """Who holds a stage."""
        ...

    def stage(self, worker: WorkerId) -> StageId:
        """The stage that a worker holds."""
        ...


class Objective(Protocol):
    """A loss that arises in a block; the block's backward begins with it."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The batch fields that it needs."""
        ...

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """The loss, one number, of a block's outputs.

        Args:
            outputs: of the block.
            lessons: what is tapped for it, in the order of the taps.
            fields: as named by :attr:`fields`.
        """
        ...


class FieldSource(Protocol):
    """Batch fields that are asked for early and come later, on one stage."""

    def request(self, batch: int) -> None:
        """Ask for the field of a batch; each is asked for once."""
        ...

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """What has come since the last call, by batch."""
        ...

    def close(self) -> None:
        """Nothing more is wanted."""
        ...


OpenSource = Callable[[Callable[[], None]], FieldSource]
"""Makes a stage's own source in the stage's process. What it is given is to be called, from any
thread, when something has come."""
