"""What is laid out, moved and handed over of a layer.

Implementations: :class:`Layer` is :class:`naspipe.runtime.layers.stored_layer.StoredLayer`;
:class:`Received` is :class:`naspipe.runtime.wire.messages.ReceivedTensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from naspipe.config.rules import OwnStep


class Layer(Protocol):
    """What is laid out in one piece of memory."""

    label: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    own_step: OwnStep
    at_hand: Callable[[], None]
    """Called before anyone looks at it, as it may be where nobody can."""


class Received(Protocol):
    """One tensor or value of a layer that another stage handed over."""

    def fits(self, target: torch.Tensor) -> bool:
        """Whether a tensor has its dtype, shape and strides."""
        ...

    def copy_to(self, target: torch.Tensor) -> None:
        """Overwrite a tensor with it."""
        ...

    def value(self) -> Any:
        """It, in memory of its own."""
        ...
