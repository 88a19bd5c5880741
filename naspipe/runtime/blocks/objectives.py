"""Where losses arise: at the end of a chain, as the recipe has it, and in blocks before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from naspipe.core.recipe import Recipe
from naspipe.runtime.blocks.segment import Tensors
from naspipe.runtime.jobs.losses import Loss, distilling, is_joined, loss_fields, smoothed
from naspipe.runtime.jobs.ports import Objective
from naspipe.runtime.jobs.workload import Workload


class EndObjective:
    """The loss of the run, at the end of a chain; with a lesson, that of learning it.

    Args:
        loss: the user's.
        recipe: what it changes of it, and whether a step's first pass teaches the others.
        is_taught: whether lessons come from a tap.
        lesson_fields: batch fields that are lessons, too.

    Raises:
        ConfigError: when the loss cannot be used so.
    """

    def __init__(
        self, loss: Loss, recipe: Recipe, is_taught: bool, lesson_fields: tuple[str, ...] = ()
    ) -> None:
        self.fields = (*loss_fields(loss), *lesson_fields)
        self._own = len(self.fields) - len(lesson_fields)
        """How many of them are the loss's."""
        self._loss = smoothed(loss, recipe.label_smoothing)
        self._distilled = distilling(loss) if is_taught or lesson_fields else None

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """See :class:`naspipe.runtime.jobs.ports.Objective`."""
        lessons, fields = (*lessons, *fields[self._own :]), fields[: self._own]
        if lessons and self._distilled is not None:
            return self._distilled(*outputs, *lessons, *fields)
        return self._loss(*outputs, *fields)


@dataclass(frozen=True, slots=True)
class JoinedObjective:
    """One loss over the outputs of all passes of a step, as one of its passes needs it.

    The lessons are the outputs of all other passes, and then those of the teacher. Only the pass's
    own output has a graph. So each pass gets its part of the gradient of one and the same loss.
    """

    loss: Any
    """Has ``joined(outputs, lessons)``."""
    passes: int
    number: int = 0
    """Of the pass, in its step."""
    fields: tuple[str, ...] = ()

    def of_pass(self, number: int) -> JoinedObjective:
        """The objective of another pass."""
        return JoinedObjective(self.loss, self.passes, number)

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """See :class:`naspipe.runtime.jobs.ports.Objective`."""
        others = self.passes - 1
        own = [*lessons[: self.number], *outputs, *lessons[self.number : others]]
        loss: torch.Tensor = self.loss.joined(own, list(lessons[others:]))
        return loss


def objectives_of(workload: Workload, is_taught: bool) -> Mapping[int, Objective]:
    """By block, where losses of a stream arise."""
    if not workload.is_trained:
        return {}
    recipe = workload.definition.recipe
    end: Objective
    if is_joined(workload.loss):
        end = JoinedObjective(workload.loss, recipe.steps.passes)
    else:
        end = EndObjective(workload.loss, recipe, is_taught, workload.lesson_fields)
    return {**workload.objectives, len(workload.space) - 1: end}


class Ending:
    """What a block's outputs end in, in one pass; they stay for whom else they go to.

    Args:
        objective: makes the loss of them.
        lessons: tapped for it.
        fields: of the batch.
    """

    def __init__(self, objective: Objective, lessons: Tensors, fields: Tensors) -> None:
        self._objective = objective
        self._lessons = lessons
        self._fields = fields
        self._outputs: Tensors = ()

    def __call__(self, outputs: Tensors) -> Tensors:
        """From a block's outputs to the loss."""
        self._outputs = tuple(output.detach() for output in outputs)
        return (self._objective(outputs, self._lessons, self._fields),)

    def take_outputs(self) -> Tensors:
        """Those of the last call, without a way back for gradients."""
        outputs, self._outputs = self._outputs, ()
        return outputs
