"""Host memory for transfers of tensors between a device and the network, and bytes of tensors."""

from __future__ import annotations

import ctypes
import warnings
import weakref
from collections import deque

import numpy as np
import torch

from naspipe.config.errors import reason
from naspipe.machine.device_waits import Wait, count, wait_for

LEAST_RECYCLED_BYTES = 1 << 20
"""Minimum size to recycle; smaller pieces are allocated by malloc, which recycles them itself."""

MOST_RECYCLED = 8


class Recycled:
    """Large pieces of host memory that are reused as soon as no tensor occupies them.

    Fresh memory takes many times as long as the copy into it, because the kernel clears it page by
    page. A piece may be returned on any thread.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=MOST_RECYCLED)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return an uninitialised uint8 tensor."""
        if nbytes < LEAST_RECYCLED_BYTES:
            return torch.empty(nbytes, dtype=torch.uint8)
        piece = self._take(nbytes)
        lent = piece[:nbytes]  # a separate object, which is freed with the last tensor in it
        weakref.finalize(lent, self._free.append, piece).atexit = False
        return torch.from_numpy(lent)

    def _take(self, nbytes: int) -> np.ndarray:
        """Return a free piece that is large enough and not much larger."""
        for _ in range(len(self._free)):
            try:
                piece = self._free.popleft()
            except IndexError:
                break
            if nbytes <= piece.size <= nbytes + nbytes // 4:
                return piece
            self._free.append(piece)
        return np.empty(nbytes, dtype=np.uint8)


class Staging:
    """Allocates host memory, which is pinned if a GPU copies to or from it; not thread-safe.

    A pinned piece may be dropped while a copy still uses it: torch reuses its memory only after the
    copies that were queued with ``non_blocking``.

    Args:
        device: the device on which the stage computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._is_copying = False
        self._recycled = Recycled()

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def is_pinned(self) -> bool:
        """Whether the memory is pinned, as far as this is known."""
        return self._is_pinned

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return an uninitialised uint8 tensor in host memory."""
        if self._is_pinned:
            try:
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._is_pinned = False
                warnings.warn(
                    f"host memory for tensors on their way is not pinned: {reason(error)}; "
                    f"copies from and to the device take longer",
                    stacklevel=3,
                )
        return self._recycled.allocate(nbytes)

    def to_host(self, raw: torch.Tensor) -> torch.Tensor:
        """Return bytes in host memory; those copied from a device are valid after :meth:`wait`."""
        if raw.device.type == "cpu":
            return raw
        host = self.allocate(raw.numel())
        host.copy_(raw, non_blocking=True)
        self._is_copying = True
        return host

    def wait(self) -> None:
        """Wait for every copy that ``to_host`` queued, and for all work before it."""
        if self._is_copying:
            wait_for(torch.cuda.current_stream(self._device), Wait.SEND)
            self._is_copying = False


HOST = Staging(torch.device("cpu"))
"""The staging of stages that compute in host memory."""


_WORD = 8
"""Size in bytes of the elements that a device compares; torch compares element by element."""
_MEMCMP = ctypes.CDLL(None).memcmp
"""Comparison for host memory: one call at memory speed, where torch needs a dozen calls."""
_MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order as a flat uint8 tensor on the same device.

    The result shares the memory of a contiguous tensor. ``as_strided`` is needed for a tensor with
    one element: torch treats it as contiguous for any stride, but refuses to view it as bytes
    unless the stride is 1.
    """
    return _bytes_in_memory(tensor.detach().resolve_conj().resolve_neg().contiguous())


def same_bits(one: torch.Tensor | None, other: torch.Tensor, why: Wait = Wait.BUFFER) -> bool:
    """Return True if two tensors have the same shape, dtype and bytes."""
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
    """Return True if the elements fill contiguous memory in any order, such as channels-last."""
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
    """Return True if the elements lie within the storage, which may have been resized to 0."""
    if tensor.numel() == 0:
        return True
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum([(size - 1) * stride for size, stride in steps])
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Return True if the memory is conjugated or negated when it is read."""
    return tensor.is_conj() or tensor.is_neg()
