"""Host memory for the layers of a stage, in slabs that are kept, and pinned if a GPU is used."""

from __future__ import annotations

import warnings
from bisect import bisect, insort
from collections.abc import Callable
from typing import NamedTuple

import torch

from naspipe.config.errors import ConfigError, reason

ALIGNMENT = 512
"""Alignment in bytes of every allocation and of every tensor in it."""

SLAB_BYTES = 64 * 1024 * 1024
"""Size of a slab in bytes."""


class HostMemoryError(ConfigError):
    """Raised if the layers of a stage exceed the host memory that they may use."""


def round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned_bytes(nbytes: int) -> torch.Tensor:
    """Allocate host memory as a uint8 tensor whose address is a multiple of :data:`ALIGNMENT`.

    It uses ordinary pages. Huge pages, which numpy requests, are cleared in half the time if the
    system has them available, but take eight times as long in a virtual machine whose host
    reclaimed them: 16 and 213 ms for 64 MiB, compared with 26 ms for ordinary pages.
    """
    memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
    return memory.narrow(0, -memory.data_ptr() % ALIGNMENT, nbytes)


class _Range(NamedTuple):
    """A part of a slab, with offsets in bytes from the start of the slab."""

    slab: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class HostArena:
    """Allocates host memory; not thread-safe.

    An allocation takes the beginning of the smallest free range that fits; a freed range is merged
    with adjacent free ranges. Layers of many sizes that arrive and leave therefore need hardly more
    memory than those that are present at the same time.

    Args:
        pin: whether to pin the memory, so that GPU copies run concurrently with compute. The first
            slab looks for a GPU, so use this only in the process that computes.
        limit_bytes: maximum of allocated memory; None for no limit.
        slab_bytes: size of a slab; a larger allocation gets a separate slab. If pinned, it should
            be a power of two, because torch rounds pinned memory up to one.
    """

    def __init__(self, pin: bool, limit_bytes: int | None, slab_bytes: int = SLAB_BYTES) -> None:
        self._pin = pin
        self._limit_bytes = limit_bytes
        self._slab_bytes = slab_bytes
        self._slabs: list[torch.Tensor] = []
        self._free: list[_Range] = []
        """Free ranges in order; no two are adjacent."""
        self._handed_out: dict[int, _Range] = {}
        """Allocated ranges by address."""
        self._leaving: list[tuple[int, Callable[[], bool]]] = []
        """Freed ranges that may still be in use for sending, by address."""
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Allocated bytes, each allocation rounded up to :data:`ALIGNMENT`."""
        self._take_back()
        return self._used_bytes

    @property
    def leaving_bytes(self) -> int:
        """Bytes of freed ranges that are still in use."""
        self._take_back()
        return sum(self._handed_out[address].nbytes for address, _ in self._leaving)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.numel() for slab in self._slabs)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return an uninitialised uint8 tensor.

        Raises:
            HostMemoryError: if the limit or the memory of the machine is exceeded.
        """
        size = round_up(nbytes)
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        self._take_back()
        if self._limit_bytes is not None and self._used_bytes + size > self._limit_bytes:
            raise HostMemoryError(
                f"host memory for layers: the limit is {self._limit_bytes} bytes, "
                f"{self._used_bytes} are used and {size} more are needed; raise the limit, or "
                f"choose a smaller scale or an optimizer with less state"
            )
        slab, start, _ = taken = self._take(size)
        self._used_bytes += size
        piece = self._slabs[slab].narrow(0, start, nbytes)
        self._handed_out[piece.data_ptr()] = taken
        return piece

    def give_back(self, piece: torch.Tensor, is_free: Callable[[], bool]) -> None:
        """Free a piece, which is reused as soon as its bytes are no longer in use.

        Args:
            piece: a tensor from :meth:`allocate`.
            is_free: polled before each allocation until it returns True.
        """
        if piece.numel():
            self._leaving.append((piece.data_ptr(), is_free))

    def _take_back(self) -> None:
        leaving, self._leaving = self._leaving, []
        for address, is_free in leaving:
            if is_free():
                freed = self._handed_out.pop(address)
                self._used_bytes -= freed.nbytes
                self._add_free(freed)
            else:
                self._leaving.append((address, is_free))

    def _take(self, size: int) -> _Range:
        """Take the beginning of the smallest free range that is large enough."""
        fitting = [
            (end - start, at)
            for at, (_, start, end) in enumerate(self._free)
            if end - start >= size
        ]
        if not fitting:
            slab = self._new_slab(size)
            self._slabs.append(slab)
            fitting = [(slab.numel(), len(self._free))]
            self._free.append(_Range(len(self._slabs) - 1, 0, slab.numel()))
        _, at = min(fitting)
        slab_index, start, end = self._free[at]
        if start + size < end:  # the rest keeps its place in the order
            self._free[at] = _Range(slab_index, start + size, end)
        else:
            del self._free[at]
        return _Range(slab_index, start, start + size)

    def _add_free(self, freed: _Range) -> None:
        """Add a free range, merged with adjacent free ranges."""
        slab, start, end = freed
        at = bisect(self._free, freed)
        if at < len(self._free) and self._free[at][:2] == (slab, end):
            end = self._free.pop(at).end
        if at and self._free[at - 1][::2] == (slab, start):
            start = self._free.pop(at - 1).start
        insort(self._free, _Range(slab, start, end))

    def _new_slab(self, size: int) -> torch.Tensor:
        wanted = self._slab_bytes
        if self._limit_bytes is not None:
            wanted = min(wanted, self._limit_bytes - self._used_bytes)
        wanted = round_up(max(wanted, size))
        slab = self._pinned(wanted) if self._pin else None
        if slab is None:
            try:
                slab = aligned_bytes(wanted)
            except RuntimeError as error:  # torch's type of error
                raise HostMemoryError(
                    f"host memory for layers: {self._used_bytes} bytes are used and the machine "
                    f"refused {wanted} more ({reason(error)}); choose a smaller scale or an "
                    f"optimizer with less state"
                ) from error
        return slab

    def _pinned(self, nbytes: int) -> torch.Tensor | None:
        """Return pinned memory, which starts at a page; None after the first failure."""
        problem = "no CUDA device was found"
        if torch.cuda.is_available():
            try:
                rounded = 1 << (nbytes - 1).bit_length()  # as in torch
                return torch.empty(rounded, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                problem = reason(error)
        self._pin = False
        warnings.warn(
            f"host memory for layers is not pinned: {problem}; copies to the device take longer",
            stacklevel=5,
        )
        return None
