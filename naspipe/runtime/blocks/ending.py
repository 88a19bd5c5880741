"""How a stream's chains end: in the loss of a pass, whatever its part in the step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from naspipe.core.recipe import Recipe
from naspipe.runtime.blocks.pass_state import StepState
from naspipe.runtime.blocks.segment import Tensors
from naspipe.runtime.jobs.losses import Loss, distilling, smoothed


class Ending:
    """Makes the end of each pass's chain.

    Args:
        loss: the user's.
        recipe: what it changes of it, and whether a step's first pass teaches the others.

    Raises:
        ConfigError: when the loss cannot be used so.
    """

    def __init__(self, loss: Loss, recipe: Recipe) -> None:
        self._loss = smoothed(loss, recipe.label_smoothing)
        self._distilled = distilling(loss) if recipe.steps.distills else None

    def of(
        self, number: int, step: StepState, target: torch.Tensor
    ) -> Callable[[Tensors], Tensors]:
        """From the last block's outputs to the loss of a step's pass ``number``."""

        def learn_target(outputs: Tensors) -> Tensors:
            return (self._loss(*outputs, target),)

        distilled = self._distilled
        if distilled is None:
            return learn_target

        def teach(outputs: Tensors) -> Tensors:
            step.taught = tuple(output.detach() for output in outputs)
            return learn_target(outputs)

        def learn_output(outputs: Tensors) -> Tensors:
            return (distilled(*outputs, *step.taught, target),)

        return learn_output if number else teach
