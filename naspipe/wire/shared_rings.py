"""Memory that workers of one machine share: large tensors go through it, not through a socket.

Each worker has a ring to each other one. The sender copies bytes into it and says where they are;
the receiver releases them in the order of arrival: when they are copied, or else when the next
message is requested. If a ring is full, the bytes take the socket. The memory has no name, so
nothing of it remains, however the run ends. A ring is used from its beginning as soon as there is
room: so it takes memory for what is in flight, which the window bounds, and not for its whole
size.
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
"""Smaller frames take the socket."""

_TOTAL_BYTES = min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
"""Of all rings of a run; pages are allocated when they are first used."""
_MOST_BYTES = 1 << 30
_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE: the machine need not have all of it."""
_GRAIN = 64
"""Positions are multiples of it: a cache line."""
_COUNTER = mmap.PAGESIZE
_COUNT = 8
"""Bytes of a counter; a ring's page has room for more."""
_MAGIC = b"naspipe: shared\n"
_CHUNK = struct.Struct("!IQQ")
"""A frame's index in its message, its position in the ring, its bytes."""


class Positions:
    """The used and free parts of a ring, as one of its ends knows them.

    Positions count all bytes since the beginning. Only the sender reserves, only the receiver
    releases.

    Args:
        given: eight bytes that both ends share: how far bytes were released.
        size: of the ring, in bytes.
    """

    def __init__(self, given: memoryview, size: int) -> None:
        self._given = given.cast("Q")
        self._size = size
        self._head = self._start = 0

    def reserve(self, nbytes: int) -> int | None:
        """The position of consecutive bytes; None if there is no room."""
        length = round_up(nbytes)
        if length > self._size:
            return None
        given = max(self._given[0], self._start)
        if given == self._head:  # empty: begin anew, in memory that was used just now
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
        """Release these bytes and all before them."""
        self._given[0] = position + round_up(nbytes)


class Ring(Positions):
    """One direction through host memory.

    Args:
        memory: shared by both ends; its first page holds how far bytes were released.
    """

    def __init__(self, memory: memoryview) -> None:
        self._data = memory[_COUNTER:]
        super().__init__(memory[:_COUNT], len(self._data))

    def put(self, data: memoryview | bytes) -> int | None:
        """Copy bytes in; returns their position, or None if there is no room."""
        position = self.reserve(len(data))
        if position is not None:
            place = self.place(position)
            copy_bytes(self._data[place : place + len(data)], data)
        return position

    def get(self, position: int, nbytes: int) -> memoryview:
        """The bytes that were put there, without a copy."""
        place = self.place(position)
        return self._data[place : place + nbytes].toreadonly()


class Rings:
    """The rings of all workers of a run, made before they are forked."""

    def __init__(self, workers: int) -> None:
        count = workers * (workers - 1)
        self._workers = workers
        room = min(_MOST_BYTES, _TOTAL_BYTES // max(1, count))
        self._each = _COUNTER + room // _COUNTER * _COUNTER
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._memory = memoryview(mmap.mmap(-1, self._each * max(1, count), flags))

    def between(self, sender: WorkerId, receiver: WorkerId) -> Ring:
        """One end of the ring from a worker to another one; each end is made once."""
        start = self._start(sender, receiver)
        return Ring(self._memory[start : start + self._each])

    def count_between(self, sender: WorkerId, receiver: WorkerId) -> memoryview:
        """Counter of a second ring from one to the other, whose memory is elsewhere."""
        start = self._start(sender, receiver) + _COUNT
        return self._memory[start : start + _COUNT]

    def _start(self, sender: WorkerId, receiver: WorkerId) -> int:
        return self._each * (sender * (self._workers - 1) + receiver - (receiver > sender))


class SharedFrames:
    """One worker's ends of its rings."""

    def __init__(self, worker: WorkerId, rings: Rings) -> None:
        self._worker = worker
        self._rings = rings
        self._ways: dict[tuple[WorkerId, WorkerId], Ring] = {}
        self._taken: tuple[Ring, int, int] | None = None
        """The last bytes of the last message."""

    def pack(self, receiver: WorkerId, frames: Sequence[Any]) -> list[Any]:
        """Frames for the socket: large ones are in the ring, and a last frame says where."""
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
        """The original frames; those of the previous message are released."""
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
        """Release the bytes of the last message."""
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
    """Copy between two buffers of one size, without the GIL."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def round_up(nbytes: int) -> int:
    return _up(nbytes, _GRAIN)


def _up(number: int, grain: int) -> int:
    return -(-number // grain) * grain
