"""Who decides what is on a stage's device."""

from __future__ import annotations

from naspipe.config.definition import Execution
from naspipe.config.ids import StageId
from naspipe.planning.memory import MemoryPlan
from naspipe.residency.manager import ResidencyManager


def residency_of(
    memory: MemoryPlan | None, stage: StageId, execution: Execution
) -> ResidencyManager | None:
    """A manager of the stage's part of the budget; None where everything is on the device."""
    if memory is None:
        return None
    return ResidencyManager(
        memory.budgets[stage],
        memory.sizes,
        memory.permanent,
        prefetches=execution.memory.prefetch,
    )
