"""A loss must give the same number for the same outputs and batch: called again, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from naspipe.core.errors import ConfigError
from naspipe.runtime.blocks.loss_state import LossState
from naspipe.runtime.blocks.segment import autocast
from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.devices.determinism import seed_draws
from naspipe.runtime.jobs.losses import name_of_loss
from naspipe.runtime.jobs.workload import Workload, field_of
from naspipe.runtime.sketching.repeated_layer import TIMES, Bits, NotRepeatedError, differ


def check_repeated(
    workload: Workload, outputs: Sequence[Tensors], batches: Sequence[Mapping[str, Any]]
) -> None:
    """Call the loss with the first outputs several times, and with the second here and anew.

    Args:
        workload: whose loss.
        outputs: of a subnet, of two batches.
        batches: whose fields it is called with.

    Raises:
        NotRepeatedError: when it gives another number, or other gradients.
    """
    loss = workload.loss
    given = [*zip(outputs, batches, strict=True)]
    fresh = _copied(workload)
    try:
        with LossState(loss).left_as_it_is():
            first = _called(workload, 0, *given[0])
    except ConfigError as error:
        raise NotRepeatedError(str(error)) from error
    found = ""
    if any(differ(_called(workload, 0, *given[0]), first) for _ in range(TIMES - 1)):
        found = "when it was called again"
    elif fresh and differ(_called(workload, 1, *given[1]), _called(fresh, 1, *given[1])):
        found = "where it had been called with another batch before"
    if found:
        raise NotRepeatedError(
            f"loss {name_of_loss(loss)}: expected the same number for the same outputs and batch, "
            f"as no checkpoint keeps what a loss does, found another {found}; keep nothing from "
            f"call to call, and draw from torch's global generator"
        )


def _copied(workload: Workload) -> Workload | None:
    """The same with a loss that has not been called; None where it cannot be copied."""
    try:
        return replace(workload, loss=deepcopy(workload.loss))
    except Exception:  # of the user's
        return None


def _called(workload: Workload, number: int, outputs: Tensors, batch: Mapping[str, Any]) -> Bits:
    """The loss, and what goes back to the outputs."""
    fields = [field_of(batch, name, 0) for name in workload.loss_fields]
    leaves = [each.detach().requires_grad_(each.requires_grad) for each in outputs]
    seed_draws(number)
    with torch.enable_grad(), autocast(workload.recipe.precision, "cpu"):
        found = workload.objective(*leaves, *fields)
        found.backward()  # type: ignore[no-untyped-call]
    return [found.detach(), *(each.grad for each in leaves)]
