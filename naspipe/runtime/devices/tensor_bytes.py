"""The bytes of a tensor, as they are compared, hashed and stored."""

from __future__ import annotations

import torch


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in row-major order as a flat uint8 tensor on its device.

    Shares the tensor's memory where that is contiguous. The detour over ``as_strided`` is for a
    tensor of one element: torch takes it for contiguous whatever its stride is, and refuses
    to view it as bytes where that is not 1.
    """
    dense = tensor.detach().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
    return flat.view(torch.uint8)
