"""A module as plain data: its class, attributes, submodules, and the names of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.runtime.sketching.plain_forms import WAY_OUT, formless, has_hooks, is_compiled

_INTERNAL = frozenset(nn.Module().__dict__)

ClassName = Callable[[nn.Module], str]
"""What the description calls a module's class: a name of the generated file, or module:class."""

IsRead = Callable[[nn.Module, str], bool]
"""Whether a module's forward may read an attribute; others need no form."""

Reference = Callable[[Any], str]
"""What the description calls a function or class that a module holds; nothing where it cannot."""


@dataclass(frozen=True, slots=True)
class Describer:
    """Turns modules into data and gathers their tensors by full name."""

    class_name: ClassName
    is_read: IsRead
    reference: Reference
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    strides: dict[str, list[int]] = field(default_factory=dict)
    """Of tensors that do not lie in row-major order: kernels go by it, and round by it."""
    _names: dict[int, str] = field(default_factory=dict)

    def module(self, module: nn.Module, where: str) -> dict[str, Any]:
        """The description of a module whose tensors are named from ``where``.

        Raises:
            ConfigError: for hooks, and for attributes that have no form as data.
        """
        if is_compiled(module):
            raise ConfigError(
                f"{where}: expected a module as it was written, found one of torch.compile, which "
                f"cannot be exported; train it uncompiled, or {WAY_OUT}"
            )
        if has_hooks(module):
            raise ConfigError(
                f"{where}: {type(module).__name__} has hooks, which cannot be exported; do their "
                f"work in its forward, or {WAY_OUT}"
            )
        persistent = module._non_persistent_buffers_set
        return {
            "class": self.class_name(module),
            "attributes": self._attributes(module, where),
            "parameters": {
                name: None
                if value is None
                else {
                    "tensor": self._tensor(value, f"{where}.{name}"),
                    "requires_grad": value.requires_grad,
                }
                for name, value in module._parameters.items()
            },
            "buffers": {
                name: None
                if value is None
                else {
                    "tensor": self._tensor(value, f"{where}.{name}"),
                    "persistent": name not in persistent,
                }
                for name, value in module._buffers.items()
            },
            "modules": {
                name: None if inner is None else self.module(inner, f"{where}.{name}")
                for name, inner in module._modules.items()
            },
        }

    def _attributes(self, module: nn.Module, where: str) -> dict[str, Any]:
        return {
            name: self._attribute(value, f"{where}.{name}")
            for name, value in module.__dict__.items()
            if name not in _INTERNAL and self.is_read(module, name)
        }

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        """A tensor that stands in several places has one name."""
        name = self._names.setdefault(id(tensor), name)
        self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        if tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
            self.strides[name] = list(tensor.stride())
        return name

    def _attribute(self, value: Any, where: str) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": value.hex()}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self._attribute(item, where) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self._attribute(item, where) for item in value]}
        if isinstance(value, Mapping):
            pairs = value.items()
            return {"dict": [[self._key(k, where), self._attribute(v, where)] for k, v in pairs]}
        if name := self.reference(value):
            return {"import": name}
        raise ConfigError(
            f"{where}: expected a number, text, list, dict or importable function, found "
            f"{type(value).__name__} ({formless(value)}), which cannot be exported; keep it out of "
            f"the module, or {WAY_OUT}"
        )

    def _key(self, key: Any, where: str) -> Any:
        if isinstance(key, str | int | float | bool):
            return key
        raise ConfigError(f"{where}: expected plain keys, found {type(key).__name__}; {WAY_OUT}")
