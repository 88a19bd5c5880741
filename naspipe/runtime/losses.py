"""The loss that a run trains with: the user's, smoothed where the recipe says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from naspipe.core.errors import ConfigError

Loss = Callable[..., torch.Tensor]
"""Called with the last block's outputs and the batch field ``target``."""


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
            f"{getattr(loss, '__qualname__', type(loss).__qualname__)}; leave it out and smooth in "
            f"your loss"
        )
    changed: Any = copy.copy(loss)
    changed.label_smoothing = label_smoothing
    found: Loss = changed
    return found
