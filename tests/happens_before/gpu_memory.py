"""Memory of a GPU and pinned memory, given out again as torch's allocators do it."""

from __future__ import annotations

import ctypes
import weakref
from bisect import insort
from collections import defaultdict

import numpy as np
import torch

from tests.happens_before.clocks import Clock, Recorder, WrongBytesError
from tests.happens_before.delayed_gpu import DelayedGpu, Event, Queue, Span

GRAIN = 512
SLAB_BYTES = 1 << 20
HOLE_BYTES = 64 << 10
"""At the begin of a GPU's memory: tensors without memory are there, and nothing else."""


class Slab:
    """Real memory that addresses are in, aligned as a GPU's is; one for all cases."""

    def __init__(self) -> None:
        whole = np.zeros(SLAB_BYTES + GRAIN, np.uint8)
        skipped = -whole.ctypes.data % GRAIN
        self.data = whole[skipped : skipped + SLAB_BYTES]
        self.start: int = self.data.ctypes.data
        self.end = self.start + SLAB_BYTES

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    def bytes(self, span: Span) -> np.ndarray:
        """Bytes that can be read and written."""
        first = span.address - self.start
        return self.data[first : first + span.nbytes]


DEVICE, PINNED = Slab(), Slab()


def _as_tensor(slab: Slab, span: Span) -> tuple[torch.Tensor, np.ndarray]:
    """A tensor, and what lives as long as its storage."""
    owner = slab.bytes(span)
    return torch.from_numpy(owner), owner


def _point(storage: torch.UntypedStorage, address: int) -> None:
    """Have a storage, and so every tensor in it, at another address.

    torch does that only with memory of its own allocators, so the pointer is written by hand.
    """
    words = (ctypes.c_uint64 * 8).from_address(storage._cdata)
    words[list(words).index(storage.data_ptr())] = address


class DeviceMemory:
    """As torch's caching allocator: a freed piece is given out again in its queue's order.

    That is at once, whatever is still queued. Each queue has pieces of its own.
    """

    def __init__(self, gpu: DelayedGpu) -> None:
        self._gpu = gpu
        self._free: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By queue: ends of address ranges, in order."""
        self._top = DEVICE.start + HOLE_BYTES
        self._live = bytearray(SLAB_BYTES // GRAIN)
        self._told: Clock = {}
        self._places: dict[int, tuple[int, int, int]] = {}
        """Of each storage that has memory: the queue, the address and the size."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor for the current queue, out of the first range with room for it."""
        place = self._take(nbytes)
        tensor, owner = _as_tensor(DEVICE, Span(place[1], nbytes))
        key = tensor.untyped_storage()._cdata
        self._places[key] = place
        weakref.finalize(owner, self._give_back, key).atexit = False
        return tensor

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Take a storage's memory away, or give it memory again."""
        if nbytes:
            self._places[storage._cdata] = place = self._take(nbytes)
            _point(storage, place[1])
        else:
            self._give_back(storage._cdata)
            _point(storage, DEVICE.start)

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        size = -(-nbytes // GRAIN) * GRAIN
        queue = id(self._gpu.current_queue())
        self._gpu.recorder.learn(self._told)  # the allocator's lock
        ranges = self._free[queue]
        for number, (start, end) in enumerate(ranges):
            if end - start >= size:
                ranges[number : number + 1] = [(start + size, end)] if end - start > size else []
                break
        else:
            start, self._top = self._top, self._top + size
            assert self._top <= DEVICE.end, "this case takes too much memory"
        self._mark(start, size, 1)
        return queue, start, size

    def check(self, what: str, span: Span) -> None:
        """Report what is used after it was freed."""
        first = (span.address - DEVICE.start) // GRAIN
        last = -(-(span.address + span.nbytes - DEVICE.start) // GRAIN)
        if self._live.count(1, first, last) != last - first:
            self._gpu.recorder.report(WrongBytesError(f"'{what}' uses memory that was freed"))

    def _mark(self, start: int, size: int, is_live: int) -> None:
        first = (start - DEVICE.start) // GRAIN
        self._live[first : first + size // GRAIN] = bytes([is_live]) * (size // GRAIN)

    def _give_back(self, storage: int) -> None:
        place = self._places.pop(storage, None)
        if place is None:
            return
        queue, start, size = place
        self._told = self._gpu.recorder.tell()
        self._mark(start, size, 0)
        ranges, end = self._free[queue], start + size
        for other in list(ranges):
            if end == other[0] or start == other[1]:
                ranges.remove(other)
                start, end = min(start, other[0]), max(end, other[1])
        insort(ranges, (start, end))


class PinnedMemory:
    """As torch's pinned allocator: a piece is given out again behind the copies that use it.

    Pieces are powers of two. The one that was freed last is given out first.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._free: dict[int, list[tuple[int, Clock]]] = defaultdict(list)
        self._leaving: list[tuple[int, int, Clock, list[Event]]] = []
        self._live: dict[int, tuple[int, list[Queue]]] = {}
        """By address: the size, and queues that copy."""
        self._top = PINNED.start

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor."""
        size = max(GRAIN, 1 << (nbytes - 1).bit_length()) if nbytes else GRAIN
        self._take_back()
        if self._free[size]:
            start, told = self._free[size].pop()
            self._recorder.learn(told)
        else:
            start, self._top = self._top, self._top + size
            assert self._top <= PINNED.end, "this case takes too much memory"
        self._live[start] = (size, [])
        tensor, owner = _as_tensor(PINNED, Span(start, nbytes))
        weakref.finalize(owner, self._give_back, start).atexit = False
        return tensor

    def used_by(self, span: Span, queue: Queue) -> None:
        """A copy of these bytes is in a queue, and nobody waits for it."""
        for start, (size, queues) in self._live.items():
            if start <= span.address < start + size and queue not in queues:
                queues.append(queue)

    def _give_back(self, start: int) -> None:
        size, queues = self._live.pop(start)
        events = [Event(self._recorder) for _ in queues]
        for event, queue in zip(events, queues, strict=True):
            event.record(queue)
        self._leaving.append((start, size, self._recorder.tell(), events))

    def _take_back(self) -> None:
        leaving, self._leaving = self._leaving, []
        for piece in leaving:
            start, size, told, events = piece
            if all(event.query() for event in events):
                self._free[size].append((start, told))
            else:
                self._leaving.append(piece)
