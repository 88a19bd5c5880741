"""A loss must give the same number for the same outputs and batch: called again, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from naspipe.core.errors import ConfigError, reason
from naspipe.runtime.blocks.loss_state import LossState
from naspipe.runtime.blocks.outside_leaves import check_loss_leaves
from naspipe.runtime.blocks.segment import autocast
from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.devices.determinism import seed_draws
from naspipe.runtime.jobs.losses import name_of_loss
from naspipe.runtime.jobs.workload import Workload, field_of
from naspipe.runtime.layers.held_tensors import held_things, words_of
from naspipe.runtime.sketching.repeated_layer import TIMES, Bits, NotRepeatedError, differ


def check_reads(workload: Workload, writes: Mapping[tuple[type, str], str]) -> None:
    """The loss may not read an attribute that the forward of a layer writes.

    Args:
        workload: whose loss.
        writes: the layer, as messages call it, by class of a part and name of the attribute.

    Raises:
        NotRepeatedError: naming the attribute.
    """
    things = [*held_things(workload.loss, "loss")] if writes else []
    words = {
        word for _, each in things if isinstance(each, FunctionType) for word in words_of(each)
    }
    for path, each in things:
        for (kind, name), layer in sorted(writes.items(), key=str):
            if type(each) is kind and name in words and each is not workload.loss:
                raise NotRepeatedError(
                    f"loss {name_of_loss(workload.loss)}: expected to learn from its outputs and "
                    f"fields of the batch alone, found it to read {path}.{name}, which the forward "
                    f"of {layer} writes: a run computes with modules of its own, on any stage; let "
                    f"the layer return it beside its output"
                )


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
            first = loss_bits(workload, 0, *given[0])
    except ConfigError as error:
        raise NotRepeatedError(str(error)) from error
    found = ""
    try:
        if any(differ(loss_bits(workload, 0, *given[0]), first) for _ in range(TIMES - 1)):
            found = "when it was called again"
    except Exception as error:  # of the user's: the first call has taken something away
        found = f"when it was called again ({reason(error)})"
    if (
        not found
        and fresh
        and differ(loss_bits(workload, 1, *given[1]), loss_bits(fresh, 1, *given[1]))
    ):
        found = "where it had been called with another batch before"
    if found:
        raise NotRepeatedError(
            f"loss {name_of_loss(loss)}: expected the same number for the same outputs and batch, "
            f"as no checkpoint keeps what a loss does, found another {found}; keep nothing from "
            f"call to call but in buffers of an nn.Module, and draw from torch's global generator"
        )


def _copied(workload: Workload) -> Workload | None:
    """The same with a loss that has not been called; None where it cannot be copied."""
    try:
        return replace(workload, loss=deepcopy(workload.loss))
    except Exception:  # of the user's
        return None


def loss_bits(workload: Workload, number: int, outputs: Tensors, batch: Mapping[str, Any]) -> Bits:
    """The loss, and what goes back to the outputs."""
    fields = [field_of(batch, name, 0) for name in workload.loss_fields]
    leaves = [each.detach().requires_grad_(each.requires_grad) for each in outputs]
    seed_draws(number)
    with torch.enable_grad(), autocast(workload.recipe.precision, "cpu"):
        found = workload.objective(*leaves, *fields)
        if isinstance(found, torch.Tensor):
            name = name_of_loss(workload.loss)
            check_loss_leaves(name, workload.loss, (found,), (*leaves, *fields))
        found.backward()  # type: ignore[no-untyped-call]
    return [found.detach(), *(each.grad for each in leaves)]
