"""Check the loss and metrics before anything is written, by shapes alone if possible."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from multiprocessing import current_process
from typing import Any

import torch
from torch import nn

from naspipe.checks.shapes import WatchedCalls
from naspipe.checks.sketched import sketch
from naspipe.config.blocks import LossBlock
from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.config.space import Space
from naspipe.jobs.batches_apart import first_batch
from naspipe.jobs.losses import Loss, Metric, is_joined, loss_fields, name_of_loss, not_one_number
from naspipe.jobs.workload import Workload, field_of
from naspipe.machine.determinism import kept_draws
from naspipe.machine.forking import done_apart
from naspipe.mixed.edges import MixedEdge

_OURS = ("torch.nn.", "naspipe.", "search_spaces.")
_MOST_OUTPUTS = 8
_SECONDS = 30.0
"""Time limit for trying functions; slower functions are not checked."""

Tensors = tuple[torch.Tensor, ...]


def given_fields(loss: Loss, names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the batch fields that a caller names for a loss, or () if they are its own fields."""
    if names is None:
        return ()
    listed = () if isinstance(names, str) else tuple(names)
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ConfigError(
            f"loss_fields: expected names of batch fields, as in ('target', 'weight'), found "
            f"{names!r:.80}"
        )
    if is_joined(loss):
        raise ConfigError(
            f"loss_fields: expected none with {name_of_loss(loss)}, which takes the outputs of all "
            f"passes and no batch fields, found {', '.join(listed)}"
        )
    return () if listed == loss_fields(loss) else listed


def check_is_loss(loss: object, what: str = "loss") -> None:
    """Refuse a loss that is a name or a class; ``what`` is the argument's name in the message."""
    if isinstance(loss, str):
        raise ConfigError(
            f"{what}: expected a function of (output, target), found the text {loss!r:.40}; write "
            f"the loss itself, as in torch.nn.CrossEntropyLoss()"
        )
    if isinstance(loss, type):
        name = loss.__name__
        raise ConfigError(
            f"{what}: expected a function of (output, target), found the class {name}; write "
            f"{name}(...), which makes one"
        )


def given_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """Return the caller's metrics as a dict; refuse anything but functions by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"metrics: expected a dict of functions by name, found {type(metrics).__name__}"
        )
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(
                f"metrics: expected names of letters, digits, - and _, found {name!r:.80}"
            )
        if not callable(function):
            raise ConfigError(
                f"metric {name}: expected a function, found {type(function).__name__}"
            )
    return dict(metrics)


def check_loss(workload: Workload) -> None:
    """Check that the loss and the metrics accept their arguments and return one number.

    The user's functions are called with the outputs of the first candidates on the meta device. If
    that is not possible, any number of outputs is accepted, and the first step checks the results
    of the functions.
    """
    loss = workload.loss
    if not workload.is_trained or not callable(loss):
        return
    if getattr(loss, "reduction", "mean") == "none":
        raise ConfigError(
            f"loss {name_of_loss(loss)}: expected one number for a batch, found reduction='none', "
            f"which gives one for each item; use reduction='mean', or a function that ends in "
            f".mean(), such as one of loss_fields=('target', 'weight')"
        )
    if not workload.has_loss_layer:
        _check_trains_nothing(loss)
    functions: dict[str, Metric] = {f"metric {name}": f for name, f in workload.metrics.items()}
    is_theirs = not type(loss).__module__.startswith(_OURS)
    if (is_theirs or workload.definition.loss_fields) and not is_joined(loss):
        functions[f"loss {name_of_loss(loss)}"] = loss
    if not functions:
        return
    fields = () if is_joined(loss) else workload.loss_fields
    batch = first_batch(workload)
    for name in fields:
        field_of(batch, name, 0)
    if current_process().daemon:
        return  # daemons may not start processes

    def tried(_: Callable[[], None]) -> dict[str, Any]:
        outputs = _outputs(workload.space, batch)
        given = tuple(field_of(batch, name, 0).to("meta") for name in fields)
        for what, function in sorted(functions.items()):
            _check_arguments(what, function, tuple(fields), len(outputs) if outputs else None)
            if outputs:
                _try(what, function, outputs, given)
        return {}

    with suppress(StageFailedError, TransportError, OSError):
        done_apart(tried, "the loss", _SECONDS)


def _check_trains_nothing(loss: Loss) -> None:
    """Refuse a loss with parameters to train, because no optimizer would step them."""
    if not isinstance(loss, nn.Module):
        return
    trained = [name for name, each in loss.named_parameters() if each.requires_grad]
    if trained:
        raise ConfigError(
            f"loss {name_of_loss(loss)}: expected no parameters to train, as each of a run's "
            f"belongs to a layer, which a joined loss is not, found {', '.join(trained):.80}; put "
            f"them into the last layer, which may return what the loss needs, write the loss as "
            f"distill(output, taught), or freeze them by requires_grad_(False)"
        )


def _check_arguments(
    what: str, function: Metric, fields: tuple[str, ...], outputs: int | None
) -> None:
    """Refuse a function whose signature does not accept outputs and fields."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # a C function without a signature
        return
    counts = range(1, _MOST_OUTPUTS + 1) if outputs is None else (outputs,)
    for count in counts:
        with suppress(TypeError):
            signature.bind(*range(count + len(fields)))
            return
    expected = ", ".join((*["output"] * (outputs or 1), *fields))
    raise ConfigError(
        f"{what}: expected a function of ({expected}), found {name_of_loss(function)}{signature}; "
        f"name the batch fields that it takes, in their order, as loss_fields=('target', ...)"
    )


def _try(what: str, function: Callable[..., Any], outputs: Tensors, fields: Tensors) -> None:
    """Refuse a function whose result is not one number, if shapes alone show that.

    Also refuse functions that change a field of the batch in place, and metrics that change an
    output, which the loss also uses. A function with its own tensors needs values and is not tried.
    """
    if isinstance(function, nn.Module):
        own = next(chain(function.parameters(), function.buffers()), None)
        if own is not None:
            return
    is_metric = what.startswith("metric")
    edits = WatchedCalls((*outputs, *fields) if is_metric else fields)
    try:
        with torch.no_grad(), torch.device("meta"), kept_draws(), edits:
            found = function(*outputs, *fields)
    except Exception:  # it needs values; the first step reports any error
        found = torch.empty(())
    if edits.is_edited:
        raise ConfigError(
            f"{what}: expected to leave its output and fields of the batch as they are, found it "
            f"to change one in place; use the out-of-place operation (x = x * 2 for x *= 2)"
        )
    is_number = isinstance(found, float | int) and is_metric
    if not is_number and (not isinstance(found, torch.Tensor) or found.numel() != 1):
        raise not_one_number(what, found)


def _outputs(space: Space, batch: Mapping[str, Any]) -> Tensors | None:
    """Return the last block's outputs without values; None if a layer cannot compute them so."""
    state: Tensors = ()
    try:
        with torch.no_grad(), torch.device("meta"), kept_draws():
            for position, block in enumerate(space.blocks):
                if isinstance(block, LossBlock):
                    break
                module: Any = sketch(space, position, 0).eval().to("meta")
                fields = [field_of(batch, name, 0).to("meta") for name in space.fields(position)]
                result = module(*state, *fields)
                state = result if isinstance(result, tuple) else (result,)
    except Exception:
        return None
    return state


def check_costs(space: Space, loss: Any) -> None:
    """Check that a student returns the cost of its paths if, and only if, its loss needs it."""
    last = len(space) - 1 - isinstance(space.blocks[-1], LossBlock)
    module = sketch(space, last, 0)
    says = isinstance(module, MixedEdge) and module.reference is not None
    if getattr(loss, "needs_cost", False) and not says:
        raise ConfigError(
            f"student {space.name}: expected a table of operations and a reference for a loss with "
            f"a cost term, found none; use naspipe.mixed.student(..., operations=TABLE, "
            f"reference=NUMBER)"
        )
    if says and not getattr(loss, "needs_cost", False):
        raise ConfigError(
            f"student {space.name}: expected a loss with a cost term for a student with a table of "
            f"operations, found {type(loss).__name__}; use naspipe.losses.CostTerm"
        )
