"""What subnets with inherited weights are judged on: in a search, and while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.runtime.jobs.workload import Batches, Workload


@dataclass(frozen=True, slots=True)
class FeatureProbe:
    """Judge features in place of a loss: learn classes from some batches, ask for those of others.

    The workload's space then ends with the block whose output they are.
    """

    kind: str
    """``knn`` or ``ridge``."""
    data: Batches
    """To learn from."""
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecipe:
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
    probe: FeatureProbe | None = None
