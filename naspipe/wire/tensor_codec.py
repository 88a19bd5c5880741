"""Tensors as frames that preserve bytes, shape, strides and alignment exactly.

A transfer that made a channels-last tensor contiguous, or changed the alignment of its data, could
change later results. A frame is therefore the span of storage that the tensor covers, and the
receiver recreates the same strides at the same offset from an aligned address. A tensor that torch
conjugates or negates lazily is sent as stored in memory, with a mark, because kernels treat it
differently from a tensor that has already been conjugated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from naspipe.config.errors import TransportError
from naspipe.machine.device_waits import Wait, count
from naspipe.machine.staging import HOST, Staging

ALIGNMENT = 512
"""Alignment of a GPU's allocator in bytes. Libraries check at most 256 (cuBLASLt)."""

HOST_ALIGNMENT = 64
"""Alignment of torch's CPU allocator in bytes."""

MAX_BYTES = 4 << 30
"""Maximum size of one tensor; larger ones are rejected before any memory is allocated."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip


_CONJUGATED, _NEGATED = "conjugated", "negated"


def describe(tensor: torch.Tensor) -> list[Any]:
    """Return the header entry of a tensor, which contains everything except its bytes."""
    alignment = HOST_ALIGNMENT if tensor.device.type == "cpu" else ALIGNMENT
    return _described(tensor, tensor.data_ptr() % alignment)


def _described(tensor: torch.Tensor, phase: int) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    shape, strides = tuple(tensor.shape), tensor.stride()
    return [name, shape, strides, phase, tensor.requires_grad, *_marks(tensor)]


def _marks(tensor: torch.Tensor) -> list[str]:
    """Return marks for lazy conjugation and negation of a tensor; usually empty."""
    return [_CONJUGATED] * tensor.is_conj() + [_NEGATED] * tensor.is_neg()


def _marked(tensor: torch.Tensor, marks: Sequence[Any]) -> torch.Tensor:
    """Return the same memory with these marks; ValueError if the dtype does not support a mark."""
    known = {_CONJUGATED, _NEGATED} if tensor.is_complex() else {_NEGATED}
    if not {*marks} <= known:
        raise ValueError(f"marks {marks} of {tensor.dtype}")
    if _CONJUGATED in marks:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if _NEGATED in marks else tensor


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the span of storage that a tensor covers, as a uint8 tensor that shares its memory."""
    span = _span(tensor.shape, tensor.stride())
    if not span:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    plain = _marked(tensor.detach(), _marks(tensor))
    data = plain.as_strided((span,), (1,), tensor.storage_offset())
    return data.view(torch.uint8)


def encode(
    tensor: torch.Tensor | None, staging: Staging = HOST
) -> tuple[list[Any] | None, memoryview]:
    """Return the header entry and the bytes of a tensor.

    The bytes share the memory of a tensor in host memory. For other tensors they are copied, and
    are valid after ``staging.wait()``.
    """
    if tensor is None:
        return None, memoryview(b"")
    return describe(tensor), staging.to_host(raw_bytes(tensor)).numpy().data


def fits(entry: Any, target: torch.Tensor) -> bool:
    """Return True if a tensor has the dtype, shape and strides of the encoded tensor."""
    expected = describe(target)
    alike = [expected[0], list(expected[1]), list(expected[2]), *expected[5:]]
    return isinstance(entry, list) and entry[:3] + entry[5:] == alike


def decode_into(entry: Any, frame: Any, target: torch.Tensor) -> None:
    """Overwrite a tensor of the same dtype, shape and strides with the encoded tensor."""
    raw = raw_bytes(target)
    if not fits(entry, target) or len(frame) != len(raw):
        expected = describe(target)
        raise TransportError(f"tensor header {entry!r:.200} does not fit {expected!r:.200}")
    if raw.device.type == "cpu":
        _filled(raw, frame)
    else:
        count(Wait.HANDED_OVER)
        raw.copy_(_filled(torch.empty(len(frame), dtype=torch.uint8), frame))


def decode(entry: Any, frame: Any, staging: Staging = HOST) -> torch.Tensor | None:
    """Decode a tensor into separate host memory; TransportError if entry and frame do not match."""
    if entry is None:
        return None
    tensor, raw = blank(entry, staging.allocate, len(frame))
    _filled(raw, frame)
    return tensor


def blank(
    entry: Any, allocate: Callable[[int], torch.Tensor], nbytes: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an uninitialised tensor that matches an entry, and its bytes.

    Args:
        entry: an entry from :func:`describe`.
        allocate: allocates a uint8 tensor.
        nbytes: required size of the tensor, if known.
    """
    try:
        name, sizes, strides, phase, requires_grad, *marks = entry
        dtype = _DTYPES[name]
        _check(sizes, strides, phase)
        if phase % dtype.itemsize:
            raise ValueError(f"an alignment of {phase} for {name}")
        size = _span(sizes, strides) * dtype.itemsize
        if max(size, math.prod(sizes) * dtype.itemsize) > MAX_BYTES or nbytes not in (None, size):
            raise ValueError(f"it takes {size} bytes, found {nbytes}")
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"a gradient of {name}")
        _marked(torch.empty(0, dtype=dtype), marks)
    except (KeyError, TypeError, ValueError) as error:
        raise TransportError(f"tensor header {entry!r:.200} does not fit: {error}") from error
    memory = allocate(size + 2 * ALIGNMENT)
    start = -memory.data_ptr() % ALIGNMENT + phase
    raw = memory[start : start + size]
    tensor = _marked(raw.view(dtype).as_strided(sizes, strides), marks)
    return (tensor.requires_grad_() if requires_grad else tensor), raw


def copy_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a leaf with the same bytes, strides, alignment and ``requires_grad`` on a device.

    The copy is ordered by the current stream; from pinned memory it is asynchronous.
    """

    def allocate(nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    # A tensor received from a stage on another device has the same alignment in host memory.
    copy, raw = blank(_described(tensor, tensor.data_ptr() % ALIGNMENT), allocate)
    raw.copy_(raw_bytes(tensor), non_blocking=True)
    return copy


def _filled(raw: torch.Tensor, frame: Any) -> torch.Tensor:
    if len(frame):
        np.copyto(raw.numpy(), np.frombuffer(frame, np.uint8))  # releases the GIL
    return raw


def _check(sizes: Sequence[int], strides: Sequence[int], phase: int) -> None:
    numbers = (*sizes, *strides, phase)
    if len(sizes) != len(strides) or any(type(number) is not int for number in numbers):
        raise ValueError("sizes, strides or alignment")
    if not all(0 <= number <= MAX_BYTES for number in numbers) or phase >= ALIGNMENT:
        raise ValueError("sizes, strides or alignment out of range")


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one that the tensor covers."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
