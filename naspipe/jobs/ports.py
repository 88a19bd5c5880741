"""Protocols between a run's work and what carries it out: stages, launcher and user code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from naspipe.config.execution import Execution
from naspipe.config.ids import StageId, Subnet, WorkerId
from naspipe.config.recipe import Recipe
from naspipe.engine.events import Planned
from naspipe.plan.memory import MemoryPlan

Tensors = tuple[torch.Tensor, ...]


class Positions(Protocol):
    """Which worker, a process, holds which position of a pipeline."""

    @property
    def num_workers(self) -> int: ...
    def worker(self, stage: StageId) -> WorkerId: ...
    def stage(self, worker: WorkerId) -> StageId: ...


class Objective(Protocol):
    """A loss that is computed in a block, and where the block's backward begins."""

    @property
    def fields(self) -> tuple[str, ...]: ...

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """The loss, one number.

        Args:
            outputs: of the block.
            lessons: what is tapped for it, in the order of the taps.
            fields: the batch fields named by :attr:`fields`.
        """


class FieldSource(Protocol):
    """Batch fields that are requested early and arrive later, on one stage."""

    def request(self, batch: int) -> None:
        """Request the field of a batch; called once for each batch."""

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """What has arrived since the last call, by batch."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeat:
    """The stage of a field source: callbacks, and what the stage will request."""

    wake: Callable[[], None]
    """To be called when something has arrived; from any thread."""
    note: Callable[[str], None]
    """Writes a line for the user; from any thread."""
    batches: Sequence[int]
    """Those that the stage will request, in the order of their passes."""
    directory: Path
    """Directory of the stream's run."""
    share: tuple[int, int]
    """Index of this stage among those that request labels (one per group), and their number."""
    generation: int
    """How many times the run has been resumed."""


OpenSource = Callable[[SourceSeat], FieldSource]
"""Makes a stage's own source in the process of the stage."""


class PipelineJob(Protocol):
    """What stages do together, as far as it is needed to start them."""

    @property
    def execution(self) -> Execution: ...

    @property
    def memory(self) -> MemoryPlan | None:
        """Memory for layers on each stage's device; None for no limit."""

    @property
    def positions(self) -> Positions: ...

    @property
    def threads(self) -> int:
        """Compute threads of every stage."""

    @property
    def recipes(self) -> Sequence[Recipe]:
        """Recipe of each stream, for its optimizer, whose state moves with the layers."""

    @property
    def claimed(self) -> Sequence[Path]:
        """Directories that belong to the job while it runs."""


class SubnetSource(Protocol):
    """Provides the subnets of a stream, which may depend on the scores of earlier ones."""

    @property
    def count(self) -> int: ...
    @property
    def subnets(self) -> Iterable[Subnet]: ...

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """Start from the beginning; returns the subnets that follow those that are ``done``.

        Called once for each attempt of a run: the same scores, which are those of the subnets that
        are done, must give the same subnets. A source that does not learn leaves the scores unread.
        """

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """A score is known; returns the subnets that follow from it, often none."""

    def close(self) -> None: ...
