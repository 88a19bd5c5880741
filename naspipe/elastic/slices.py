"""Which part of a tensor a setting uses: always the first of its rows and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def chosen(name: str | None, settings: Mapping[str, Any], largest: int) -> int:
    """The value of a setting, or the largest where the size is fixed."""
    if name is None:
        return largest
    size = int(settings[name])
    if not 0 < size <= largest:
        raise ValueError(f"{name}={size}: expected 1 to {largest}, as large as the layer is")
    return size


def named(*names: str | None) -> tuple[str, ...]:
    """The settings that a module takes: those of its sizes that are not fixed."""
    return tuple(dict.fromkeys(name for name in names if name is not None))


@torch.no_grad()
def fill(module: nn.Module, **tensors: torch.Tensor | None) -> None:
    """Copy tensors into a module's parameters and buffers of these names."""
    for name, tensor in tensors.items():
        if tensor is not None:
            getattr(module, name).copy_(tensor)
