"""What is laid out, moved and handed over of a layer.

Implementations: :class:`Layer` is :class:`naspipe.runtime.layers.stored_layer.StoredLayer`;
:class:`Place` are the parameters, buffers and optimizer states of
:mod:`naspipe.runtime.layers.layer_layout`; :class:`Received` is
:class:`naspipe.runtime.wire.messages.ReceivedTensor`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from naspipe.core.rules import OwnStep


class Layer(Protocol):
    """What is laid out in one piece of memory."""

    label: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    own_step: OwnStep


class Place(Protocol):
    """Where a layer keeps one of its tensors."""

    def get(self) -> torch.Tensor | None:
        """The tensor; None while there is none."""
        ...

    def bind(self, tensor: torch.Tensor) -> None:
        """Put a tensor of the same shape, strides and dtype in its stead."""
        ...


class Received(Protocol):
    """One tensor or value of a layer that another stage handed over."""

    def copy_to(self, target: torch.Tensor) -> None:
        """Overwrite a tensor with it."""
        ...

    def value(self) -> Any:
        """It, in memory of its own."""
        ...
