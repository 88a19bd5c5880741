"""What subnets with inherited weights are judged on: in a search, and while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from naspipe.core.ids import FIRST_STREAM
from naspipe.runtime.calibration import blocks_to_calibrate
from naspipe.runtime.compute import Batches, Workload
from naspipe.runtime.evaluation import Evaluation
from naspipe.runtime.restored import Restored
from naspipe.trace.snapshot import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The batches, and how they are used; the weights come with each evaluation."""

    workload: Workload
    """What was trained; its data are those to calibrate with."""
    held_out: Batches
    """Batches to judge by."""
    calibration: int
    """Batches that running statistics are taken from; 0 to use those of the training."""
    validation: int
    """Batches of ``held_out``."""
    ema: bool = False
    """Take the moving averages of the weights."""

    def evaluation(self, checkpoint: Checkpoint) -> Evaluation:
        """With the weights of a checkpoint."""
        workload, seed = self.workload, self.workload.definition.seed
        calibrated = blocks_to_calibrate(workload.space) if self.calibration else 0
        calibration = self.calibration if calibrated else 0

        def batch(number: int) -> Mapping[str, torch.Tensor]:
            if number < calibration:
                return workload.data(seed, number)
            return self.held_out(seed, number - calibration)

        return Evaluation(
            space=workload.space,
            weights=Restored(workload.space, FIRST_STREAM, checkpoint),
            loss=workload.loss,
            recipe=workload.definition.recipe,
            seed=seed,
            batch=batch,
            calibration=calibration,
            validation=self.validation,
            calibrated=calibrated,
            ema=self.ema,
        )
