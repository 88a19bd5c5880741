"""Host memory for the layers of a stage: slabs taken once, pinned where there is a GPU."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable

import torch

from naspipe.core.errors import ConfigError, reason

ALIGNMENT = 512
"""Bytes; every piece of memory and every tensor in it starts at a multiple of this."""

SLAB_BYTES = 64 * 1024 * 1024
"""How much memory is taken at a time."""


class HostMemoryError(ConfigError):
    """The layers of a stage do not fit into the host memory that they may use."""


def round_up(nbytes: int) -> int:
    """The next multiple of :data:`ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned_bytes(nbytes: int) -> torch.Tensor:
    """Fresh host memory as a uint8 tensor whose address is a multiple of :data:`ALIGNMENT`."""
    memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
    return memory.narrow(0, -memory.data_ptr() % ALIGNMENT, nbytes)


class HostArena:
    """Hands out host memory; for one thread.

    What is given back is handed out again as pieces of the same size: a stage's layers have few
    sizes, and as many come as go.

    Args:
        pin: lock the memory, so that a GPU copies to and from it beside the compute. Looks for
            a GPU when the first slab is taken, so use it in the process that computes only.
        limit_bytes: how much may be handed out; None for no limit.
        slab_bytes: how much is taken at a time. A bigger piece gets a slab of its own. A power
            of two, where it is pinned: torch takes pinned memory in powers of two.
    """

    def __init__(self, pin: bool, limit_bytes: int | None, slab_bytes: int = SLAB_BYTES) -> None:
        self._pin = pin
        self._limit_bytes = limit_bytes
        self._slab_bytes = slab_bytes
        self._tails: list[torch.Tensor] = []
        self._leaving: list[tuple[torch.Tensor, Callable[[], bool]]] = []
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._carved_bytes = 0
        """Of all pieces there are, free ones included."""
        self._used_bytes = 0
        self._reserved_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes handed out, each piece rounded up to :data:`ALIGNMENT`."""
        self._take_back()
        return self._used_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all slabs, what is not handed out yet included."""
        return self._reserved_bytes

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor of ``nbytes``, from the oldest slab that has room; its bytes are any.

        A piece of that size that was given back goes first.

        Raises:
            HostMemoryError: beyond the limit, or when the machine has no more.
        """
        size = round_up(nbytes)
        self._take_back()
        if free := self._free[size]:
            self._used_bytes += size
            return free.pop()[:nbytes]
        if self._limit_bytes is not None and self._carved_bytes + size > self._limit_bytes:
            raise HostMemoryError(
                f"host memory for layers: the limit is {self._limit_bytes} bytes, "
                f"{self._carved_bytes} are used and {size} more are needed; raise the limit, or "
                f"choose a smaller scale or an optimizer with less state"
            )
        piece = self._carve(size)
        self._used_bytes += size
        self._carved_bytes += size
        return piece[:nbytes]

    def give_back(self, piece: torch.Tensor, is_free: Callable[[], bool]) -> None:
        """Let a piece be handed out again, as soon as nobody else uses its bytes either.

        Args:
            piece: what :meth:`allocate` returned.
            is_free: asked before every piece that is handed out, until it is true.
        """
        whole = piece.as_strided((round_up(piece.numel()),), (1,))
        self._leaving.append((whole, is_free))

    def _take_back(self) -> None:
        leaving, self._leaving = self._leaving, []
        for piece, is_free in leaving:
            if is_free():
                self._free[piece.numel()].append(piece)
                self._used_bytes -= piece.numel()
            else:
                self._leaving.append((piece, is_free))

    def _carve(self, size: int) -> torch.Tensor:
        """A piece that nobody had before."""
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        index = next((i for i, tail in enumerate(self._tails) if tail.numel() >= size), None)
        if index is None:
            self._tails.append(self._new_slab(size))
            index = len(self._tails) - 1
        tail = self._tails[index]
        if tail.numel() == size:
            del self._tails[index]
        else:
            self._tails[index] = tail[size:]
        return tail[:size]

    def _new_slab(self, size: int) -> torch.Tensor:
        wanted = self._slab_bytes
        if self._limit_bytes is not None:
            wanted = min(wanted, self._limit_bytes - self._carved_bytes)
        wanted = round_up(max(wanted, size))
        slab = self._pinned(wanted) if self._pin else None
        if slab is None:
            try:
                slab = aligned_bytes(wanted)
            except RuntimeError as error:
                raise HostMemoryError(
                    f"host memory for layers: {self._used_bytes} bytes are used and the machine "
                    f"refused {wanted} more ({reason(error)}); choose a smaller scale or an "
                    f"optimizer with less state"
                ) from error
        self._reserved_bytes += slab.numel()
        return slab

    def _pinned(self, nbytes: int) -> torch.Tensor | None:
        """Pinned memory, or None from the first failure on. It starts at a page."""
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
