"""Memory for the copies that checkpoints are written from, used again for the next one."""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np
import torch

from naspipe.runtime.devices.device_waits import Wait, on_host

CHUNK_BYTES = 32 * 1024 * 1024
"""How much is taken at a time: whole huge pages."""


class CaptureMemory:
    """Chunks that are lent to one checkpoint after another.

    Fresh memory costs more than the copies that it is for: the kernel clears it page by page.
    May be given back on another thread than it is taken.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def lend(self) -> Lease:
        """Memory for one checkpoint."""
        return Lease(self._free)


class Lease:
    """What one checkpoint has; :meth:`end` gives it back."""

    def __init__(self, free: deque[np.ndarray]) -> None:
        self._free = free
        self._chunks: list[np.ndarray] = []
        self._address = 0
        self._used = 0

    def keep(self, flat: torch.Tensor) -> memoryview:
        """Copy a flat tensor of any dtype, on any device; its bytes stay until the end."""
        source = on_host(flat, Wait.CAPTURE).view(torch.uint8).numpy()
        copy, _ = self.reserve(source.size)
        copy[:] = source.data
        return copy

    def reserve(self, nbytes: int) -> tuple[memoryview, int]:
        """Memory to be filled, and its address."""
        if not self._chunks or self._used + nbytes > self._chunks[-1].size:
            self._chunks.append(self._take(nbytes))
            self._address = self._chunks[-1].ctypes.data
            self._used = 0
        start = self._used
        self._used += nbytes
        return self._chunks[-1][start : self._used].data, self._address + start

    def end(self) -> None:
        """Nobody reads the copies any more."""
        self._free.extend(chunk for chunk in self._chunks if chunk.size == CHUNK_BYTES)
        self._chunks.clear()

    def _take(self, nbytes: int) -> np.ndarray:
        if nbytes <= CHUNK_BYTES:
            try:
                return self._free.pop()
            except IndexError:
                nbytes = CHUNK_BYTES
        memory = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.uint8)
