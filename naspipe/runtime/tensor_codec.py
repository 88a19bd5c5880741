"""Tensors as frames: bytes, shape, strides and alignment exactly as they were.

A boundary that made a channels-last tensor contiguous, or moved its data to another
alignment, could change bits downstream. So a frame is the span of storage that the tensor
covers, and the receiver rebuilds the same strides at the same offset from an aligned address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from naspipe.core.errors import TransportError

ALIGNMENT = 64
"""Bytes; what torch's CPU allocator aligns to."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip


def encode(tensor: torch.Tensor | None) -> tuple[list[Any] | None, memoryview]:
    """The header entry and the bytes of a tensor; the bytes share its memory."""
    if tensor is None:
        return None, memoryview(b"")
    sizes, strides = tuple(tensor.shape), tensor.stride()
    span = _span(sizes, strides)
    data = tensor.detach().as_strided((span,), (1,), tensor.storage_offset())
    raw = data.view(torch.uint8) if span else torch.empty(0, dtype=torch.uint8)
    phase = tensor.data_ptr() % ALIGNMENT
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, sizes, strides, phase, tensor.requires_grad], raw.numpy().data


def decode_into(entry: Any, frame: Any, target: torch.Tensor) -> None:
    """Overwrite a tensor of the same dtype, shape and strides with what was encoded.

    Raises:
        TransportError: when the tensor is another one.
    """
    expected, memory = encode(target)
    if expected is None or entry[:3] != [expected[0], list(expected[1]), list(expected[2])]:
        raise TransportError(f"tensor header {entry!r:.200} does not fit {expected!r:.200}")
    memory[:] = frame


def decode(entry: Any, frame: Any) -> torch.Tensor | None:
    """Rebuild a tensor in memory of its own.

    Raises:
        TransportError: when entry and frame do not fit each other.
    """
    if entry is None:
        return None
    try:
        name, sizes, strides, phase, requires_grad = entry
        dtype = _DTYPES[name]
        _check(sizes, strides, phase)
        span = _span(sizes, strides)
        if span * dtype.itemsize != len(frame) or phase % dtype.itemsize:
            raise ValueError(f"{len(frame)} bytes for a span of {span} {name}")
    except (KeyError, TypeError, ValueError) as error:
        raise TransportError(f"tensor header {entry!r:.200} does not fit: {error}") from error
    memory = torch.empty(len(frame) + 2 * ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT + phase
    target = memory[start : start + len(frame)]
    if len(frame):
        target.numpy().data[:] = frame
    tensor = target.view(dtype).as_strided(sizes, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _check(sizes: Sequence[int], strides: Sequence[int], phase: int) -> None:
    if len(sizes) != len(strides) or not 0 <= phase < ALIGNMENT:
        raise ValueError("sizes, strides or alignment")
    if any(size < 0 or stride < 0 for size, stride in zip(sizes, strides, strict=True)):
        raise ValueError("negative sizes or strides")


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last that the tensor touches."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
