"""The bytes of a tensor, as they are compared, hashed and stored."""

from __future__ import annotations

import torch

from naspipe.runtime.devices.device_waits import Wait, count

_WORD = 8
"""Bytes that are compared at once: torch compares element by element, and bytes would take eight
times as long."""


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in row-major order as a flat uint8 tensor on its device.

    Shares the tensor's memory where that is contiguous. The detour over ``as_strided`` is for a
    tensor of one element: torch takes it for contiguous whatever its stride is, and refuses
    to view it as bytes where that is not 1.
    """
    dense = tensor.detach().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
    return flat.view(torch.uint8)


def same_bits(one: torch.Tensor | None, other: torch.Tensor, why: Wait = Wait.BUFFER) -> bool:
    """Whether two tensors have the same shape, dtype and bytes."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_cpu:
        count(why)
    ours, theirs = tensor_bytes(one), tensor_bytes(other)
    if ours.storage_offset() % _WORD or theirs.storage_offset() % _WORD:
        return torch.equal(ours, theirs)
    size = ours.numel() - ours.numel() % _WORD
    heads = ours[:size].view(torch.int64), theirs[:size].view(torch.int64)
    return torch.equal(*heads) and torch.equal(ours[size:], theirs[size:])
