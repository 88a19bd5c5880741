"""Losses and metrics at the end of a chain, and losses in earlier blocks."""

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
    """The loss at the end of a chain, or its distillation loss if teacher outputs are available.

    Args:
        loss: the user's loss.
        recipe: supplies the label smoothing.
        is_taught: whether a tap delivers teacher outputs.
        lesson_fields: batch fields that contain teacher outputs.
        fields: batch fields passed to the loss; None for the fields that the loss names.
        is_layer: whether the loss is the module of a layer, which may change its buffers.
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

    ``make`` creates the objective of a loss. The layer is a copy of the user's module, ``loss``.
    """

    def __init__(self, make: Callable[[Loss], EndObjective], loss: Loss) -> None:
        self._make = make
        self.fields = make(loss).fields

    def of_layer(self, module: Loss) -> EndObjective:
        return self._make(module)

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        raise InvariantError("the loss was to be computed without its layer")


@dataclass(frozen=True, slots=True)
class JoinedObjective:
    """A loss over the outputs of all passes of a step, as computed in one of the passes.

    ``lessons`` contains the outputs of all other passes, followed by the teacher outputs. Only the
    pass's own output has a graph, so each pass receives its part of the gradient of the same loss.
    """

    loss: Any
    """An object with a method ``joined(outputs, lessons)``."""
    passes: int
    number: int = 0  # the number of the pass in its step
    fields: tuple[str, ...] = ()

    def __call__(self, outputs: Tensors, lessons: Tensors, fields: Tensors) -> torch.Tensor:
        others = self.passes - 1
        own = [*lessons[: self.number], *outputs, *lessons[self.number : others]]
        loss: torch.Tensor = self.loss.joined(own, list(lessons[others:]))
        return loss


def objectives_of(workload: Workload, is_taught: bool) -> Mapping[int, Objective]:
    """Return the objectives of a stream by the block that computes them."""
    if not workload.is_trained:
        return {}
    recipe = workload.definition.recipe
    end: Objective
    has_layer = workload.has_loss_layer
    if is_joined(workload.loss):
        end = JoinedObjective(workload.loss, recipe.steps.passes)
    else:
        make = partial(
            EndObjective,
            recipe=recipe,
            is_taught=is_taught,
            fields=workload.loss_fields,
            lesson_fields=workload.lesson_fields,
            is_layer=has_layer,
        )
        end = LayerObjective(make, workload.loss) if has_layer else make(workload.loss)
    return {**workload.objectives, len(workload.space) - 1: end}


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of every pass at the end of a chain."""

    functions: Mapping[str, Metric]
    fields: int
    """Number of the objective's leading fields that are passed to the metrics."""

    @torch.no_grad()
    def __call__(self, outputs: Tensors, fields: Tensors) -> dict[str, torch.Tensor]:
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
    """Return the metrics to compute after a block: none except at the end of the chain."""
    if not workload.metrics or block < len(workload.space) - 1:
        return NO_METRICS
    fields = () if is_joined(workload.loss) else workload.loss_fields
    return Metrics(workload.metrics, len(fields))


class Ending:
    """Computes the loss of one pass from a block's outputs, and keeps the outputs for other users.

    The metrics are computed only once, even if the block is recomputed.
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

    def __call__(self, outputs: Tensors) -> Tensors:
        self._outputs = tuple(output.detach() for output in outputs)
        with left_as_it_is("the loss", self._lessons, self._fields):
            loss = self._objective(outputs, self._lessons, self._fields)
        if self.measured is None:
            self.measured = self._measure(self._outputs, self._fields)
        return (loss,)

    def take_outputs(self) -> Tensors:
        """Return the detached outputs of the last call, and release them."""
        outputs, self._outputs = self._outputs, ()
        return outputs
