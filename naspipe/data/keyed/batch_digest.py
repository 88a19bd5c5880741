"""What tells one batch from another: a short digest of each field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

SAMPLE_BYTES = 16 * 1024
"""At each end of a field, what :func:`short_digest` looks at."""


def field_digests(batch: Mapping[str, Any]) -> dict[str, str]:
    """Of each tensor of a batch, 16 hex digits: of its dtype, its shape and all its bytes."""
    tensors = sorted((name, each) for name, each in batch.items() if _is_tensor(each))
    return {name: digest(each) for name, each in tensors}


def short_digest(batch: Mapping[str, Any]) -> str:
    """16 hex digits of a whole batch, from the ends of its fields: fast enough for every pass."""
    whole = hashlib.blake2b(digest_size=8)
    for name in sorted(name for name, each in batch.items() if _is_tensor(each)):
        whole.update(f"{name}={digest(batch[name], SAMPLE_BYTES)};".encode())
    return whole.hexdigest()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def digest(tensor: torch.Tensor, most: int | None = None) -> str:
    """16 hex digits: of the dtype, the shape and all bytes, or so many at each end."""
    raw = plain_bytes(tensor).numpy().data
    found = hashlib.blake2b(f"{tensor.dtype}{list(tensor.shape)}".encode(), digest_size=8)
    if most is None or len(raw) <= 2 * most:
        found.update(raw)
    else:
        found.update(raw[:most])
        found.update(raw[-most:])
    return found.hexdigest()


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its indices, uint8 (bytes,), in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
