"""A layer at one version, as a pass uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Gradients = dict[str, torch.Tensor]
"""Gradients by parameter name; a parameter without one is absent, never zero."""


class BoundLayer:
    """A layer's forward at one version, and the leaf tensors its gradients arrive at."""

    def __init__(
        self,
        module: nn.Module,
        call: Callable[..., Any],
        parameters: Mapping[str, torch.Tensor],
    ) -> None:
        self.module = module
        self.call = call
        self._parameters = parameters

    def take_gradients(self) -> Gradients:
        """Move the gradients out of the parameters, leaving them absent."""
        gradients: Gradients = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                gradients[name] = parameter.grad
                parameter.grad = None
        return gradients
