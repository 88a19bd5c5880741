"""The bytes of a tensor, as they are compared, hashed and stored."""

from __future__ import annotations

import torch

from naspipe.runtime.devices.device_waits import Wait, count


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
    return torch.equal(tensor_bytes(one), tensor_bytes(other))
