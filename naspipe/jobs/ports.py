"""Protocols between the work of a run and the stages, launcher and user code that execute it."""

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
    """Maps workers, which are processes, to positions in a pipeline."""

    @property
    def num_workers(self) -> int: ...
    def worker(self, stage: StageId) -> WorkerId: ...
    def stage(self, worker: WorkerId) -> StageId: ...


class Objective(Protocol):
    """A loss that is computed in a block, in which a backward begins."""

    @property
    def fields(self) -> tuple[str, ...]: ...

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """Return the loss, a single number.

        Args:
            outputs: the outputs of the block.
            lessons: the tapped outputs for the loss, in the order of the taps.
            fields: the batch fields named by :attr:`fields`.
        """


class FieldSource(Protocol):
    """Batch fields that are requested early and arrive later, on one stage."""

    def request(self, batch: int) -> None:
        """Request the field of a batch; called once for each batch."""

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Return the fields that have arrived since the last call, with their batches."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeat:
    """The context of a field source on a stage: callbacks, and the batches to be requested."""

    wake: Callable[[], None]
    """Must be called when a field has arrived; may be called from any thread."""
    note: Callable[[str], None]
    """Writes a line for the user; may be called from any thread."""
    batches: Sequence[int]
    """The batches that the stage will request, in the order of their passes."""
    directory: Path
    """Directory of the stream's run."""
    share: tuple[int, int]
    """Index of this stage among those that request labels (one per group), and their number."""
    generation: int
    """Number of times that the run has been resumed."""


OpenSource = Callable[[SourceSeat], FieldSource]
"""Creates a stage's source in the process of the stage."""


class PipelineJob(Protocol):
    """The joint work of the stages, with the properties that are needed to start them."""

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
        """Start from the beginning, and return the subnets after the first ``done`` ones.

        This is called once for each attempt of a run. The same scores, which are those of the
        subnets that are done, must give the same subnets. A source that does not learn does not
        consume the scores.
        """

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """Record a score, and return the subnets that are proposed because of it, often none."""

    def close(self) -> None: ...
