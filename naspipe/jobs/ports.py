"""What a user may hand over beside a loss, what stages do together, who holds what, who proposes.

========================= ==================================================================="""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from naspipe.config.definition import Execution, Recipe
from naspipe.config.ids import StageId, Subnet, WorkerId
from naspipe.engine.events import Planned
from naspipe.plan.memory import MemoryPlan

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeat:
    """Where a source sits: what it may tell its stage, and what the stage will ask for."""

    wake: Callable[[], None]
    """To be called when something has come; from any thread."""
    note: Callable[[str], None]
    """Tells the user a line; from any thread."""
    batches: Sequence[int]
    """That the stage will ask for, in the order of their passes."""
    directory: Path
    """Where the stream is recorded."""
    share: tuple[int, int]
    """Which of how many stages this is that ask, one for each group."""
    generation: int
    """How often the run has gone on."""


OpenSource = Callable[[SourceSeat], FieldSource]
"""Makes a stage's own source in the stage's process."""


class PipelineJob(Protocol):
    """What stages do together, as far as starting them goes."""

    @property
    def execution(self) -> Execution:
        """On how many stages, and how."""
        ...

    @property
    def memory(self) -> MemoryPlan | None:
        """What layers may occupy on each stage's device; None for no limit."""
        ...

    @property
    def positions(self) -> Positions:
        """Who holds which stage."""
        ...

    @property
    def threads(self) -> int:
        """Of the compute, on every stage."""
        ...

    @property
    def recipes(self) -> Sequence[Recipe]:
        """Of each stream: optimizers, whose state layers take along."""
        ...

    @property
    def claimed(self) -> Sequence[Path]:
        """Directories that belong to the job while it runs."""
        ...


class SubnetSource(Protocol):
    """Proposes the subnets of a stream, maybe from the scores of earlier ones."""

    @property
    def count(self) -> int:
        """How many there are so far."""
        ...

    @property
    def subnets(self) -> Iterable[Subnet]:
        """Every subnet so far."""
        ...

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """Start from the beginning; returns what follows the subnets that are ``done``.

        Called once for each life of a run: the same scores, which are those of the subnets that
        are done, give the same subnets. A source that does not learn leaves them alone.
        """
        ...

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """A score is known; returns the subnets that it leads to, often none."""
        ...

    def close(self) -> None:
        """The run's life is over."""
        ...
