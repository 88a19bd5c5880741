"""What a stage's process is put together from, beside the ports of the rooms below.

Implementations: :class:`StageSink` is :class:`~naspipe.runtime.worker.stage_files.StageFiles`
(training) or :class:`~naspipe.runtime.evaluating.evaluation_stage.ScoreSink`;
:class:`StageWork` is :class:`~naspipe.runtime.worker.stage_process.StageRun` or
:class:`~naspipe.runtime.evaluating.evaluation_stage.EvaluationStage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naspipe.config.ids import Access, SequenceId, StreamId
from naspipe.core.commands import WriteLayer
from naspipe.core.events import Event
from naspipe.runtime.blocks.ports import BlockResult
from naspipe.runtime.layers.stored_layer import StoredLayer


class StageSink(Protocol):
    """Where a stage's results go: files and the launcher."""

    def access(self, access: Access) -> None:
        """One record of the access log."""
        ...

    def result(self, stream: StreamId, sequence_id: SequenceId, result: BlockResult) -> None:
        """A subnet's loss, or its sums, in the order in which subnets reach it here."""
        ...

    def event(self, event: Event) -> None:
        """An event that the controller is about to handle."""
        ...

    def written(self, command: WriteLayer, stored: StoredLayer) -> None:
        """One of the first steps has written a layer, which is compared with a plain loop."""
        ...

    def held(self, admitted: Sequence[int]) -> None:
        """The stage admits nothing more of its own accord: of each stream, how many it has."""
        ...


class StageWork(Protocol):
    """What a stage's process does."""

    @property
    def current(self) -> str:
        """What the stage is at, for the report of a failure."""
        ...

    def run(self) -> None:
        """Work to the end, and report."""
        ...
