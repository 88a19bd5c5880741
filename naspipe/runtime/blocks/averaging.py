"""What the backward of a pass starts with: its part of the step's loss, all alike or by items."""

from __future__ import annotations

from functools import lru_cache

import torch

from naspipe.config.errors import ConfigError, NotFiniteError
from naspipe.runtime.blocks.engine import Gradient
from naspipe.runtime.devices.device_waits import Wait, on_host
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Workload, field_of


class Averaging:
    """Scales the first gradient of each pass's backward.

    Items are counted from the data alone, so that no group has to ask another one. Batches of
    other groups are made for that, unless the data have a method ``items(seed, number)``.

    Args:
        workload: whose steps they are.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._steps = workload.definition.recipe.steps
        self._count = lru_cache(4 * self._steps.passes)(self._count_items)

    def part(self, gradient: torch.Tensor, sequence_id: int) -> torch.Tensor:
        """The gradient of a pass's loss as a part of the step's loss.

        Raises:
            ConfigError: when no pass of the step has an item.
        """
        steps = self._steps
        if not steps.is_average or steps.trained == 1:
            return gradient
        if not steps.weighs_items:
            return gradient / steps.trained
        first = steps.step(sequence_id) * steps.trained
        end = first + steps.trained
        total = sum(self._count(number) for number in range(first, end))
        if not total:
            raise ConfigError(
                f"weight=items: expected targets in the batches {first} to {end - 1}, found none "
                f"that the loss counts"
            )
        return gradient * (self._count(steps.batch(sequence_id)) / total)

    def _count_items(self, number: int) -> int:
        data, seed = self._workload.data, self._workload.definition.seed
        own = getattr(data, "items", None)
        if callable(own):
            return int(own(seed, number))
        target = field_of(data(seed, number), self._workload.target_field, number)
        return counted_items(target, self._workload.loss)


def first_gradient(loss: torch.Tensor, nonfinite: str, sequence_id: int) -> Gradient:
    """What a backward starts with; None for a step whose parameters stay as they are.

    Args:
        loss: of one pass.
        nonfinite: the recipe's choice: ``stop``, ``skip`` or ``keep``.
        sequence_id: the subnet, for the message.

    Raises:
        NotFiniteError: when the choice is to stop.
    """
    if nonfinite == "keep" or bool(on_host(torch.isfinite(loss).all(), Wait.FINITE)):
        return torch.ones_like(loss)
    if nonfinite == "skip":
        return None
    raise NotFiniteError(
        f"subnet {sequence_id}: expected a finite loss, found {float(loss):g}; choose a lower lr, "
        f"or --set nonfinite=skip (its layers stay as they are) or keep (train on)"
    )


def counted_items(target: torch.Tensor, loss: Loss) -> int:
    """Values of a target that a loss averages over: all but those it ignores."""
    ignored = getattr(loss, "ignore_index", None)
    if ignored is None or target.is_floating_point():
        return target.numel()
    return int((target != ignored).sum())
