"""Layers whose forward changes their own parameters: ``nn.Embedding(max_norm=...)``, forced norms.

A plain loop carries such a change from the forward to the backward, the step and the next forward.
So does a run in which nothing else reads the layer between its forward and its WRITE. Everywhere
else the change would be lost, made twice or seen by another pass, and the layer is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.runtime.devices.device_waits import Wait, count

_NORMED = (nn.Embedding, nn.EmbeddingBag)


class EditedParameterError(ConfigError):
    """A layer's forward changes a parameter where the run cannot carry the change."""


def refused(layer: str, parameter: str, obstacle: str) -> EditedParameterError:
    """What refuses such a layer.

    Args:
        layer: what messages call it, as in ``layer 2.0 (Embedding)``.
        parameter: the name of the parameter that changes.
        obstacle: what of the run does not carry the change.
    """
    return EditedParameterError(
        f"{layer}: its forward changes its own parameter {parameter}, which only a run with "
        f"rule exact, policy csp, one pass per step and neither recompute nor memory_budget "
        f"carries on as a plain loop does, found {obstacle}; train without it, or let the forward "
        f"compute with a changed copy and leave the parameter as it is"
    )


def obstacle_to_edits(
    policy: str, passes: int, recompute: bool = False, has_budget: bool = False
) -> str:
    """What of a run does not carry such a change; empty if nothing is in the way."""
    if policy != "csp":
        return f"policy {policy}"
    if passes > 1:
        return f"{passes} passes per step"
    if recompute:
        return "recompute"
    return "memory_budget" if has_budget else ""


def known_edit(module: nn.Module) -> str:
    """The parameter that torch's own parts change in their forward; empty if there is none."""
    for name, part in module.named_modules():
        if isinstance(part, _NORMED) and part.max_norm is not None:
            return f"{name}.weight" if name else "weight"
    return ""


class _Mark(NamedTuple):
    """What tells that a parameter has changed."""

    counter: int
    address: int
    checksum: int


class ParameterMarks:
    """Parameters as they are now, to find out later which of them has changed.

    Torch counts changes in place, but not those made through ``parameter.data``.

    Args:
        parameters: by name.
        looks_at_bits: do not rely on what torch counts; waits for the device.
    """

    __slots__ = ("_before", "_looks_at_bits", "_parameters")

    def __init__(self, parameters: Mapping[str, torch.Tensor], looks_at_bits: bool) -> None:
        self._parameters = parameters
        self._looks_at_bits = looks_at_bits
        self._before = [_mark(each, looks_at_bits) for each in parameters.values()]

    def changed(self) -> str:
        """The name of the first parameter that has changed since; empty if none has."""
        for (name, each), before in zip(self._parameters.items(), self._before, strict=True):
            if _mark(each, self._looks_at_bits) != before:
                return name
        return ""


def _mark(tensor: torch.Tensor, looks_at_bits: bool) -> _Mark:
    counter = 0 if tensor.is_inference() else tensor._version
    return _Mark(counter, tensor.data_ptr(), _checksum(tensor) if looks_at_bits else 0)


def _checksum(tensor: torch.Tensor) -> int:
    """A sum over all bits, which takes no memory to speak of."""
    value = tensor.detach()
    if value.layout != torch.strided or value.is_meta or not value.numel():
        return 0
    if not value.is_cpu:
        count(Wait.INPUT)
    kind = torch.int32 if value.itemsize % 4 == 0 else torch.uint8
    value = value.resolve_conj().resolve_neg().contiguous()
    flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
    return int(flat.view(kind).sum(dtype=torch.int64))
