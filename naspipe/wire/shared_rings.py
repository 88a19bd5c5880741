"""Shared memory between workers of one machine, which transfers large tensors instead of a socket.

Each worker has a ring to every other worker. The sender copies bytes into it and sends their
position; the receiver releases them in the order of arrival: when they have been copied, or else
when the next message is requested. If a ring is full, the bytes are sent through the socket. The
memory has no name, so nothing remains after the run, however it ends. A ring is used from its
beginning as soon as there is room, so it occupies memory only for the bytes in flight, which the
window bounds, and not for its full size.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from naspipe.config.ids import WorkerId

LEAST_BYTES = 32 << 10
"""Minimum size in bytes; smaller frames are sent through the socket."""

_TOTAL_BYTES = min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
"""Size of all rings of a run; pages are allocated when they are first used."""
_MOST_BYTES = 1 << 30
_NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux: the machine need not have the full amount of memory."""
_GRAIN = 64
"""Positions are multiples of this size, a cache line."""
_COUNTER = mmap.PAGESIZE
_COUNT = 8
"""Size of a counter in bytes; the first page of a ring has room for several."""
_MAGIC = b"naspipe: shared\n"
_CHUNK = struct.Struct("!IQQ")
"""A frame's index in its message, its position in the ring, and its size in bytes."""


class Positions:
    """The used and free parts of a ring from the view of one of its ends.

    Positions count all bytes since the start of the run. Only the sender reserves bytes, and only
    the receiver releases them.

    Args:
        given: eight bytes shared by both ends, with the position up to which bytes were released.
        size: the size of the ring in bytes.
    """

    def __init__(self, given: memoryview, size: int) -> None:
        self._given = given.cast("Q")
        self._size = size
        self._head = self._start = 0

    def reserve(self, nbytes: int) -> int | None:
        """Reserve consecutive bytes, and return their position; None if there is no room."""
        length = round_up(nbytes)
        if length > self._size:
            return None
        given = max(self._given[0], self._start)
        if given == self._head:  # empty: restart at the beginning, in recently used memory
            self._start = given = self._head = _up(self._head, self._size)
        position, begin = self._head, _up(self._head, self._size)
        fits_before = begin + length - given <= self._size
        if fits_before or position % self._size + length > self._size:
            position = begin
        if position + length - given > self._size:
            return None
        self._head = position + length
        return position

    def place(self, position: int) -> int:
        return position % self._size

    def give_back(self, position: int, nbytes: int) -> None:
        """Release these bytes and all previous ones."""
        self._given[0] = position + round_up(nbytes)


class Ring(Positions):
    """One direction through host memory.

    Args:
        memory: memory shared by both ends, whose first page holds the released position.
    """

    def __init__(self, memory: memoryview) -> None:
        self._data = memory[_COUNTER:]
        super().__init__(memory[:_COUNT], len(self._data))

    def put(self, data: memoryview | bytes) -> int | None:
        """Copy bytes into the ring, and return their position; None if there is no room."""
        position = self.reserve(len(data))
        if position is not None:
            place = self.place(position)
            copy_bytes(self._data[place : place + len(data)], data)
        return position

    def get(self, position: int, nbytes: int) -> memoryview:
        """Return the bytes at a position without copying them."""
        place = self.place(position)
        return self._data[place : place + nbytes].toreadonly()


class Rings:
    """The rings of all workers of a run, created before the workers are forked."""

    def __init__(self, workers: int) -> None:
        count = workers * (workers - 1)
        self._workers = workers
        room = min(_MOST_BYTES, _TOTAL_BYTES // max(1, count))
        self._each = _COUNTER + room // _COUNTER * _COUNTER
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._memory = memoryview(mmap.mmap(-1, self._each * max(1, count), flags))

    def between(self, sender: WorkerId, receiver: WorkerId) -> Ring:
        """Return one end of the ring between two workers; each end must be created only once."""
        start = self._start(sender, receiver)
        return Ring(self._memory[start : start + self._each])

    def count_between(self, sender: WorkerId, receiver: WorkerId) -> memoryview:
        """Return the counter of a second ring between two workers, whose memory is elsewhere."""
        start = self._start(sender, receiver) + _COUNT
        return self._memory[start : start + _COUNT]

    def _start(self, sender: WorkerId, receiver: WorkerId) -> int:
        return self._each * (sender * (self._workers - 1) + receiver - (receiver > sender))


class SharedFrames:
    """The ends of all rings of one worker."""

    def __init__(self, worker: WorkerId, rings: Rings) -> None:
        self._worker = worker
        self._rings = rings
        self._ways: dict[tuple[WorkerId, WorkerId], Ring] = {}
        self._taken: tuple[Ring, int, int] | None = None
        """The last bytes of the previous message."""

    def pack(self, receiver: WorkerId, frames: Sequence[Any]) -> list[Any]:
        """Return frames for the socket; a last frame locates the large ones in the ring."""
        packed, chunks = list(frames), []
        for number, frame in enumerate(frames):
            if len(frame) >= LEAST_BYTES and receiver != self._worker:
                position = self._way(self._worker, receiver).put(frame)
                if position is not None:
                    packed[number] = b""
                    chunks.append(_CHUNK.pack(number, position, len(frame)))
        if chunks:
            packed.append(b"".join([_MAGIC, self._worker.to_bytes(4, "big"), *chunks]))
        return packed

    def unpack(self, frames: Sequence[memoryview]) -> Sequence[memoryview]:
        """Return the original frames, after releasing those of the previous message."""
        self.give_back()
        last = frames[-1]
        if len(frames) == 1 or last[: len(_MAGIC)] != _MAGIC:
            return frames
        text = bytes(last[len(_MAGIC) :])
        ring = self._way(WorkerId(int.from_bytes(text[:4], "big")), self._worker)
        whole = list(frames[:-1])
        for number, position, nbytes in _CHUNK.iter_unpack(text[4:]):
            whole[number] = ring.get(position, nbytes)
            self._taken = (ring, position, nbytes)
        return whole

    def give_back(self) -> None:
        """Release the bytes of the previous message."""
        if self._taken is not None:
            ring, position, nbytes = self._taken
            ring.give_back(position, nbytes)
            self._taken = None

    def _way(self, sender: WorkerId, receiver: WorkerId) -> Ring:
        way = (sender, receiver)
        if way not in self._ways:
            self._ways[way] = self._rings.between(*way)
        return self._ways[way]


def copy_bytes(target: Any, source: Any) -> None:
    """Copy between two buffers of the same size, without the GIL."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def round_up(nbytes: int) -> int:
    return _up(nbytes, _GRAIN)


def _up(number: int, grain: int) -> int:
    return -(-number // grain) * grain
