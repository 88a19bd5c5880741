"""Where losses arise: at the end of a chain, as the recipe has it, and in blocks before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from naspipe.config.errors import InvariantError
from naspipe.config.recipe import Recipe
from naspipe.jobs.losses import (
    Loss,
    Metric,
    check_one_number,
    distilling,
    is_joined,
    loss_fields,
    name_of_loss,
    not_one_number,
    smoothed,
)
from naspipe.jobs.ports import Objective
from naspipe.jobs.workload import Workload
from naspipe.worker.blocks.guards import LossState, left_as_it_is
from naspipe.worker.blocks.specs import Tensors


class EndObjective:
    """The loss of the run, at the end of a chain; with a lesson, that of learning it.

    Args:
        loss: the user's.
        recipe: what it changes of it, and whether a step's first pass teaches the others.
        is_taught: whether lessons come from a tap.
        lesson_fields: batch fields that are lessons, too.
        fields: batch fields that the loss is called with; None for those that it names itself.
        is_layer: the loss is the module of a layer, so it may change its buffers.

    Raises:
        ConfigError: when the loss cannot be used so.
    """

    def __init__(
        self,
        loss: Loss,
        recipe: Recipe,
        is_taught: bool,
        lesson_fields: tuple[str, ...] = (),
        fields: tuple[str, ...] | None = None,
        is_layer: bool = False,
    ) -> None:
        own = loss_fields(loss) if fields is None else fields
        self.fields = (*own, *lesson_fields)
        self._own = len(own)
        """How many of them are the loss's."""
        self._name = name_of_loss(loss)
        self._state = LossState(None if is_layer else loss)
        self._loss = smoothed(loss, recipe.label_smoothing)
        self._distilled = distilling(loss) if is_taught or lesson_fields else None

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        lessons, fields = (*lessons, *fields[self._own :]), fields[: self._own]
        with self._state.left_as_it_is():
            if lessons and self._distilled is not None:
                loss = self._distilled(*outputs, *lessons, *fields)
            else:
                loss = self._loss(*outputs, *fields)
        check_one_number(f"loss {self._name}", loss)
        return loss


class LayerObjective:
    """The loss of a run whose last layer is the loss module; see :class:`LossBlock`.

    Args:
        make: makes the objective of a loss.
        loss: the user's own module, of which the layer is a copy.
    """

    def __init__(self, make: Callable[[Loss], EndObjective], loss: Loss) -> None:
        self._make = make
        self.fields = make(loss).fields

    def of_layer(self, module: Loss) -> EndObjective:
        """The objective that computes with the module of the layer."""
        return self._make(module)

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        """Refuse a call, because only :meth:`of_layer` has the parameters of the run."""
        raise InvariantError("the loss was to be computed without its layer")


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
    has_layer = workload.has_loss_layer
    if is_joined(workload.loss):
        end = JoinedObjective(workload.loss, recipe.steps.passes)
    else:
        make = partial(
            EndObjective, recipe=recipe, is_taught=is_taught, fields=workload.loss_fields,
            lesson_fields=workload.lesson_fields, is_layer=has_layer,
        )  # fmt: skip
        end = LayerObjective(make, workload.loss) if has_layer else make(workload.loss)
    return {**workload.objectives, len(workload.space) - 1: end}


@dataclass(frozen=True, slots=True)
class Metrics:
    """What is measured of every pass at the end of a chain, beside the loss."""

    functions: Mapping[str, Metric]
    fields: int
    """How many of the objective's fields they are called with, the first ones."""

    @torch.no_grad()
    def __call__(self, outputs: Tensors, fields: Tensors) -> dict[str, torch.Tensor]:
        """One number each, in the order of their names.

        Raises:
            ConfigError: when one gives something else.
        """
        found = {}
        for name in sorted(self.functions):
            with left_as_it_is(f"metric {name}", outputs, fields):
                value = self.functions[name](*outputs, *fields[: self.fields])
            if isinstance(value, float | int):
                value = torch.tensor(float(value), dtype=torch.float64)
            if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.is_complex():
                raise not_one_number(f"metric {name}", value)
            found[name] = value.detach()
        return found


NO_METRICS = Metrics({}, 0)


def metrics_of(workload: Workload, block: int) -> Metrics:
    """What is measured of a stream's passes behind a block: something at the chain's end only."""
    if not workload.metrics or block < len(workload.space) - 1:
        return NO_METRICS
    fields = () if is_joined(workload.loss) else workload.loss_fields
    return Metrics(workload.metrics, len(fields))


class Ending:
    """What a block's outputs end in, in one pass; they stay for whom else they go to.

    Args:
        objective: makes the loss of them.
        lessons: tapped for it.
        fields: of the batch.
        metrics: what is measured of them, too; once, also where the block is computed again.
    """

    def __init__(
        self,
        objective: Objective,
        lessons: Tensors,
        fields: Tensors,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._objective = objective
        self._lessons = lessons
        self._fields = fields
        self._outputs: Tensors = ()
        self._measure = metrics
        self.measured: Mapping[str, torch.Tensor] | None = None
        """By metric."""

    def __call__(self, outputs: Tensors) -> Tensors:
        """From a block's outputs to the loss."""
        self._outputs = tuple(output.detach() for output in outputs)
        with left_as_it_is("the loss", self._lessons, self._fields):
            loss = self._objective(outputs, self._lessons, self._fields)
        if self.measured is None:
            self.measured = self._measure(self._outputs, self._fields)
        return (loss,)

    def take_outputs(self) -> Tensors:
        """Those of the last call, without a way back for gradients."""
        outputs, self._outputs = self._outputs, ()
        return outputs
