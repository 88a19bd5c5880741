"""Memory that workers of one machine share: large tensors go through it, not through a socket.

Each worker has a ring to each other one. Who sends copies bytes into it and says where they are;
who receives gives them back in the order in which they came: when they are copied, or else when
the next message is asked for. A ring that is full is no harm: then the bytes take the socket. The
memory has no name, so nothing of it stays behind, however the run ends.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Any

from naspipe.core.ids import WorkerId

LEAST_BYTES = 32 << 10
"""Smaller frames are not worth the way round."""

_TOTAL_BYTES = 256 << 20
"""Of all rings of a run; memory is taken as far as it is used."""
_MOST_BYTES = 128 << 20
_GRAIN = 64
"""Positions are multiples of it: a line of the cache."""
_COUNTER = mmap.PAGESIZE
_MAGIC = b"naspipe: shared\n"
_CHUNK = struct.Struct("!IQQ")
"""A frame's place in its message, its position in the ring, its bytes."""


class Ring:
    """One way; positions count all bytes since the beginning.

    Args:
        memory: shared by both ends; its first page holds how far bytes were given back.
    """

    def __init__(self, memory: memoryview) -> None:
        self._given = memory[:8].cast("Q")
        self._data = memory[_COUNTER:]
        self._size = len(self._data)
        self._head = self._start = 0

    def put(self, data: memoryview | bytes) -> int | None:
        """Copy bytes in; returns their position, None where there is no room."""
        length = _up(len(data), _GRAIN)
        if length > self._size:
            return None
        given = max(self._given[0], self._start)
        if given == self._head:  # empty: begin anew, in memory that was used just now
            self._start = given = self._head = _up(self._head, self._size)
        position = self._head
        if position % self._size + length > self._size:
            position = _up(position, self._size)
        if position + length - given > self._size:
            return None
        place = position % self._size
        self._data[place : place + len(data)] = data
        self._head = position + length
        return position

    def get(self, position: int, nbytes: int) -> memoryview:
        """The bytes that were put there, as they lie; whoever needs them longer copies them."""
        place = position % self._size
        return self._data[place : place + nbytes].toreadonly()

    def give_back(self, position: int, nbytes: int) -> None:
        """These and all before them are needed no more."""
        self._given[0] = position + _up(nbytes, _GRAIN)


class Rings:
    """Of all workers of a run, made before they are forked.

    Args:
        workers: how many there are.
    """

    def __init__(self, workers: int) -> None:
        count = workers * (workers - 1)
        self._workers = workers
        room = min(_MOST_BYTES, _TOTAL_BYTES // max(1, count))
        self._each = _COUNTER + room // _COUNTER * _COUNTER
        self._memory = memoryview(mmap.mmap(-1, self._each * max(1, count)))

    def between(self, sender: WorkerId, receiver: WorkerId) -> Ring:
        """One end of the ring from a worker to another one; each end is made once."""
        number = sender * (self._workers - 1) + receiver - (receiver > sender)
        return Ring(self._memory[number * self._each : (number + 1) * self._each])


class SharedFrames:
    """One worker's ends of its rings.

    Args:
        worker: which.
        rings: of the run.
    """

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
        """The frames as they were; those of the message before are given back."""
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
        """The bytes of the last message are needed no more."""
        if self._taken is not None:
            ring, position, nbytes = self._taken
            ring.give_back(position, nbytes)
            self._taken = None

    def _way(self, sender: WorkerId, receiver: WorkerId) -> Ring:
        way = (sender, receiver)
        if way not in self._ways:
            self._ways[way] = self._rings.between(*way)
        return self._ways[way]


def _up(number: int, grain: int) -> int:
    return -(-number // grain) * grain
