"""A layer at one version, as a pass uses it: called itself, or by what an elastic layer gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

Gradients = dict[str, torch.Tensor]
"""Gradients by parameter name; a parameter without one is absent, never zero."""

_INNER = "_module"

Apply = Callable[..., Any]
"""Of a module, tensors and settings by their names; see :class:`naspipe.Elastic`."""


class BoundLayer:
    """A layer's forward at one version, and the leaf tensors its gradients arrive at."""

    def __init__(
        self,
        module: nn.Module,
        call: Callable[..., Any],
        parameters: Mapping[str, torch.Tensor],
        is_first: bool = False,
    ) -> None:
        self.module = module
        self.call = call
        self.parameters = parameters
        self.is_first = is_first
        """Whether nothing has called the layer here before, so that it is looked at closely."""

    def part_gradients(self, others: Iterable[torch.Tensor | None]) -> None:
        """Give gradients that are in the memory of one of the others memory of their own.

        The gradient of ``p`` in ``x + p.view_as(x)`` is that of the sum, and so is that of ``x``.
        What changes it in place, as clipping does, must not change what goes back along the chain.
        Those of one layer that share memory still do, as in a plain loop.
        """
        storages = (each.untyped_storage() for each in others if each is not None)
        taken = {(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages}
        shared = [
            parameter
            for parameter in self.parameters.values()
            if parameter.grad is not None and _is_within(parameter.grad, taken)
        ]
        copies = deepcopy([each.grad for each in shared]) if shared else ()
        for parameter, copy in zip(shared, copies, strict=True):
            parameter.grad = copy

    def take_gradients(self) -> Gradients:
        """Move the gradients out of the parameters, leaving them absent."""
        gradients: Gradients = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                gradients[name] = parameter.grad
                parameter.grad = None
        return gradients


def _is_within(tensor: torch.Tensor, memory: Iterable[tuple[int, int]]) -> bool:
    begin = (tensor._values() if tensor.is_sparse else tensor).data_ptr()
    return any(first <= begin < end for first, end in memory)


class Applied:
    """Calls a module, with its own parameters or with others in their place.

    Args:
        module: what is called.
        apply: called in its place, with the module first.
    """

    def __init__(self, module: nn.Module, apply: Apply | None = None) -> None:
        self._module = module
        self._wrapped = None if apply is None else _Wrapped(module, apply)
        self.call: Callable[..., Any] = module if apply is None else partial(apply, module)
        """With the module's own parameters."""

    def at(self, tensors: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The same with other tensors in the place of the module's, by their names."""
        module, given = self._module, dict(tensors)
        if self._wrapped is not None:
            module = self._wrapped
            given = {f"{_INNER}.{name}": tensor for name, tensor in tensors.items()}

        def call(*inputs: Any, **setting: Any) -> Any:
            return functional_call(module, given, inputs, setting)

        return call


class _Wrapped(nn.Module):
    """A module whose forward is a function of another module."""

    def __init__(self, module: nn.Module, apply: Apply) -> None:
        super().__init__()
        self.add_module(_INNER, module)
        self._apply_to = apply

    def forward(self, *inputs: Any, **setting: Any) -> Any:
        return self._apply_to(self.get_submodule(_INNER), *inputs, **setting)
