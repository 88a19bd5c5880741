"""Which worker holds which position of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.config.ids import StageId, WorkerId


@dataclass(frozen=True, slots=True)
class OnePipeline:
    """One pipeline, a worker to each stage: worker j holds stage j."""

    num_workers: int

    def worker(self, stage: StageId) -> WorkerId:
        """Who holds a stage."""
        return WorkerId(stage)

    def stage(self, worker: WorkerId) -> StageId:
        """The stage that a worker holds."""
        return StageId(worker)
