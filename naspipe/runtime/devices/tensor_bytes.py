"""The bytes of a tensor, as they are compared, hashed and stored."""

from __future__ import annotations

import ctypes

import torch

from naspipe.runtime.devices.device_waits import Wait, count

_WORD = 8
"""Bytes that a device compares at once: torch compares element by element."""
_MEMCMP = ctypes.CDLL(None).memcmp
"""In host memory: one call, at the memory's speed, where torch's take a dozen."""
_MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in row-major order as a flat uint8 tensor on its device.

    Shares the tensor's memory where that is contiguous. The detour over ``as_strided`` is for a
    tensor of one element: torch takes it for contiguous whatever its stride is, and refuses
    to view it as bytes where that is not 1.
    """
    return _bytes_in_memory(tensor.detach().resolve_conj().resolve_neg().contiguous())


def same_bits(one: torch.Tensor | None, other: torch.Tensor, why: Wait = Wait.BUFFER) -> bool:
    """Whether two tensors have the same shape, dtype and bytes."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (_has_memory(one) and _has_memory(other)):
        return False
    is_alike = one.stride() == other.stride() and _is_dense(one)
    if not is_alike or _is_lazy(one) or _is_lazy(other):
        one, other = tensor_bytes(one), tensor_bytes(other)
    if one.is_cpu and other.is_cpu:
        return bool(_MEMCMP(one.data_ptr(), other.data_ptr(), one.nbytes) == 0)
    count(why)
    ours, theirs = _bytes_in_memory(one.detach()), _bytes_in_memory(other.detach())
    if ours.storage_offset() % _WORD or theirs.storage_offset() % _WORD:
        return torch.equal(ours, theirs)
    size = ours.numel() - ours.numel() % _WORD
    heads = ours[:size].view(torch.int64), theirs[:size].view(torch.int64)
    return torch.equal(*heads) and torch.equal(ours[size:], theirs[size:])


def _bytes_in_memory(dense: torch.Tensor) -> torch.Tensor:
    flat = dense.as_strided((dense.numel(),), (1,), dense.storage_offset())
    return flat.view(torch.uint8)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory, in whatever order, as in channels-last."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements lie within its storage; not where that was resized, to be freed."""
    if tensor.numel() == 0:
        return True
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum([(size - 1) * stride for size, stride in steps])
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether what is in its memory is conjugated, or negated, as it is read."""
    return tensor.is_conj() or tensor.is_neg()
