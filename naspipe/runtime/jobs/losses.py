"""The loss that a run trains with: the user's, smoothed where the recipe says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from naspipe.config.errors import ConfigError

Loss = Callable[..., torch.Tensor]
"""Called with the last block's outputs and its fields of the batch: ``target`` as a rule."""

Metric = Callable[..., Any]
"""Called as a loss is; returns one number, which nothing learns from."""


def loss_fields(loss: Loss) -> tuple[str, ...]:
    """The batch fields that a loss is called with: its ``fields``, ``target`` if it has none."""
    return tuple(getattr(loss, "fields", ("target",)))


def distilled_fields(loss: Loss) -> tuple[str, ...]:
    """The batch fields that a loss is called with when every pass has a lesson.

    A loss may say so as ``distilled_fields``. Otherwise they are its ``fields``, and none for
    ``torch.nn.CrossEntropyLoss``, which then compares with the lesson alone.
    """
    if type(loss) is torch.nn.CrossEntropyLoss:
        return ()
    return tuple(getattr(loss, "distilled_fields", loss_fields(loss)))


def name_of_loss(loss: object) -> str:
    """How messages call a loss or a metric."""
    return str(getattr(loss, "__qualname__", type(loss).__qualname__))


def not_one_number(what: str, found: Any) -> ConfigError:
    """What to say of a loss or a metric that does not give one number.

    Args:
        what: the loss or the metric, as messages call it.
        found: what it gave.
    """
    todo = "use reduction='mean', or end in .mean()"
    said = "None" if found is None else type(found).__name__
    if isinstance(found, torch.Tensor):
        said = f"a tensor of shape {list(found.shape)} (reduction='none' gives one for each item)"
    elif what.startswith("metric"):
        todo = "return a number, or a tensor of one element"
    else:
        todo = "return a tensor that gradients go back from, and no .item() of it"
    return ConfigError(f"{what}: expected one number for a batch, found {said}; {todo}")


def check_one_number(what: str, found: Any) -> None:
    """A loss or a metric gives a tensor with one number.

    Raises:
        ConfigError: for anything else.
    """
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise not_one_number(what, found)


def is_joined(loss: Loss) -> bool:
    """Whether it is one loss over the outputs of all passes of a step."""
    return callable(getattr(loss, "joined", None))


def needs_teacher(loss: Loss) -> bool:
    """Whether it has no form without one."""
    return bool(getattr(loss, "needs_teacher", not callable(loss) and not is_joined(loss)))


def wants_hidden(loss: Loss) -> bool:
    """Whether it learns what went into a teacher's last block, behind what came out."""
    return bool(getattr(loss, "wants_hidden", False))


def untaught(
    loss: Loss, passes: int, lessons: int, *, fields: int = 0, is_taught: bool = False
) -> Loss:
    """The loss without a teacher, for whoever has outputs but no lessons.

    Outputs teach themselves where the loss has no such form, or a run never uses it.

    Args:
        loss: as the recipe changes it.
        passes: of a step.
        lessons: of a step, with a teacher.
        fields: how many of the arguments are batch fields, the last ones.
        is_taught: whether every pass of a run has a lesson.
    """
    if is_joined(loss):
        joined: Any = loss
        return lambda output, *_: joined.joined([output] * passes, [output.detach()] * lessons)
    if callable(loss) and not is_taught:
        return loss
    compare, costs = distilling(loss), int(getattr(loss, "needs_cost", False))

    def taught_by_itself(*given: torch.Tensor) -> torch.Tensor:
        count = len(given) - fields
        own = (output.detach() for output in given[: count - costs])
        return compare(*given[:count], *own, *given[count:])

    return taught_by_itself


def smoothed(loss: Loss, label_smoothing: float) -> Loss:
    """The same loss with another amount of label smoothing; 0 leaves it as it is.

    Raises:
        ConfigError: when it has no attribute ``label_smoothing``, so cannot take one.
    """
    if not label_smoothing:
        return loss
    if not isinstance(getattr(loss, "label_smoothing", None), float | int):
        raise ConfigError(
            f"label_smoothing={label_smoothing:g}: expected a loss with an attribute "
            f"label_smoothing (torch.nn.CrossEntropyLoss, or that of a named space), found "
            f"{name_of_loss(loss)}; leave it out and smooth in "
            f"your loss"
        )
    own = loss.label_smoothing  # type: ignore[attr-defined]
    if own not in (0, label_smoothing):
        raise ConfigError(
            f"label_smoothing={label_smoothing:g}: expected it to be given once, found "
            f"{own:g} in {name_of_loss(loss)}(label_smoothing={own:g}), too; leave one of them out"
        )
    changed: Any = copy.copy(loss)
    changed.label_smoothing = label_smoothing
    found: Loss = changed
    return found


def distilling(loss: Loss) -> Loss:
    """The loss of a subnet that learns another one's output: (output, taught output, target).

    A loss says its own as a method ``distill``, which takes its ``fields`` in place of the target.
    That of ``torch.nn.CrossEntropyLoss`` is the mean cross entropy against the softmax of the
    taught output.

    Raises:
        ConfigError: when it has none.
    """
    own = getattr(loss, "distill", None)
    if callable(own):
        found: Loss = own
        return found
    if type(loss) is torch.nn.CrossEntropyLoss:
        return _soft_cross_entropy
    raise ConfigError(
        f"passes=sandwich, or a teacher: expected torch.nn.CrossEntropyLoss, the loss of a named "
        f"space, or one with a method distill(output, taught_output, target) or "
        f"joined(outputs, lessons), found "
        f"{name_of_loss(loss)}"
    )


def _soft_cross_entropy(
    output: torch.Tensor, taught: torch.Tensor, *_: torch.Tensor
) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, taught.softmax(1))
