"""Host memory for the layers of a stage: slabs taken once, pinned if there is a GPU."""

from __future__ import annotations

import warnings
from bisect import bisect, insort
from collections.abc import Callable
from typing import NamedTuple

import torch

from naspipe.config.errors import ConfigError, reason

ALIGNMENT = 512
"""Bytes; every piece of memory and every tensor in it starts at a multiple of this."""

SLAB_BYTES = 64 * 1024 * 1024
"""Size of a slab."""


class HostMemoryError(ConfigError):
    """The layers of a stage do not fit into the host memory that they may use."""


def round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned_bytes(nbytes: int) -> torch.Tensor:
    """Fresh host memory as a uint8 tensor whose address is a multiple of :data:`ALIGNMENT`.

    It has ordinary pages. Huge pages, which numpy requests, are cleared in half the time if the
    system has them at hand, but take eight times as long in a virtual machine whose host reclaimed
    them: 16 and 213 ms for 64 MiB, compared with 26 for ordinary ones.
    """
    memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
    return memory.narrow(0, -memory.data_ptr() % ALIGNMENT, nbytes)


class _Range(NamedTuple):
    """A part of a slab, in bytes from its beginning."""

    slab: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class HostArena:
    """Allocates host memory; for one thread.

    A piece is the beginning of the smallest free range that fits; a returned piece is merged with
    the free ranges next to it. So layers of many sizes that come and go take hardly more memory
    than those that are present at a time.

    Args:
        pin: lock the memory, so that GPU copies run concurrently with the compute. A GPU is looked
            for when the first slab is taken, so use this only in the process that computes.
        limit_bytes: maximum of allocated memory; None for no limit.
        slab_bytes: size of a slab; a bigger piece gets a slab of its own. If pinned, it should be a
            power of two, because torch rounds pinned memory up to one.
    """

    def __init__(self, pin: bool, limit_bytes: int | None, slab_bytes: int = SLAB_BYTES) -> None:
        self._pin = pin
        self._limit_bytes = limit_bytes
        self._slab_bytes = slab_bytes
        self._slabs: list[torch.Tensor] = []
        self._free: list[_Range] = []
        """In order; no two are adjacent."""
        self._handed_out: dict[int, _Range] = {}
        """By address."""
        self._leaving: list[tuple[int, Callable[[], bool]]] = []
        """Returned pieces that may still be in use for sending."""
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes allocated, each piece rounded up to :data:`ALIGNMENT`."""
        self._take_back()
        return self._used_bytes

    @property
    def leaving_bytes(self) -> int:
        """Bytes of returned pieces that are still in use."""
        self._take_back()
        return sum(self._handed_out[address].nbytes for address, _ in self._leaving)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.numel() for slab in self._slabs)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """An uninitialised uint8 tensor; HostMemoryError beyond the limit or the machine's
        memory.
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
        """Return a piece, which is reused as soon as nobody else uses its bytes.

        Args:
            piece: from :meth:`allocate`.
            is_free: polled before each allocation until it is true.
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
        """The beginning of the smallest free range that is large enough."""
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
        if start + size < end:  # what is left has its place in the order
            self._free[at] = _Range(slab_index, start + size, end)
        else:
            del self._free[at]
        return _Range(slab_index, start, start + size)

    def _add_free(self, freed: _Range) -> None:
        """Merge a range with the free ones on both sides."""
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
            except RuntimeError as error:  # as torch has it
                raise HostMemoryError(
                    f"host memory for layers: {self._used_bytes} bytes are used and the machine "
                    f"refused {wanted} more ({reason(error)}); choose a smaller scale or an "
                    f"optimizer with less state"
                ) from error
        return slab

    def _pinned(self, nbytes: int) -> torch.Tensor | None:
        """Pinned memory, which starts at a page, or None after the first failure."""
        problem = "no CUDA device was found"
        if torch.cuda.is_available():
            try:
                rounded = 1 << (nbytes - 1).bit_length()  # what torch takes anyway
                return torch.empty(rounded, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                problem = reason(error)
        self._pin = False
        warnings.warn(
            f"host memory for layers is not pinned: {problem}; copies to the device take longer",
            stacklevel=5,
        )
        return None
