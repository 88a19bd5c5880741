"""Memory for the copies that checkpoints are written from: blocks, used again and again."""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from isal.isal_zlib import crc32

BLOCK_BYTES = 4 * 1024 * 1024
"""So small that what was copied is still in the cache when it is written."""


class Block:
    """Some memory, and its address."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, BLOCK_BYTES, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.view = memoryview(memory)


class CaptureMemory:
    """Blocks for one checkpoint after another.

    Fresh memory costs more than the copies that it is for: the kernel clears it page by page.
    May be given back on another thread than it is taken.
    """

    def __init__(self) -> None:
        self._free: deque[Block] = deque()

    def take(self) -> Block:
        """The block that was given back last, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return Block()

    def give_back(self, block: Block) -> None:
        """Nobody reads it any more."""
        self._free.append(block)


class Span:
    """A stretch of memory that is to be filled."""

    __slots__ = ("address", "view")

    def __init__(self, block: Block, begin: int, end: int) -> None:
        self.address = block.address + begin
        self.view = block.view[begin:end]


def checksum(spans: Iterable[Span], of_earlier: int = 0) -> int:
    """The CRC32 of what is there, behind bytes with this one."""
    for span in spans:
        of_earlier = crc32(span.view, of_earlier)
    return of_earlier


class _Lane:
    """Blocks that are filled one after another."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.used = BLOCK_BYTES
        """Bytes of the last one."""


class Captured:
    """The bytes of one checkpoint, those with items of the same size one after another.

    Of the items that first fill a block, every full block is handed on; the rest stays here.

    Args:
        memory: where blocks are from.
        hand_on: takes a block that nobody fills any more, and has it given back.
    """

    def __init__(self, memory: CaptureMemory, hand_on: Callable[[Block], None]) -> None:
        self._memory = memory
        self._hand_on = hand_on
        self._lanes: dict[int, _Lane] = {}
        self.streamed_items = 0
        """The size of the items that are handed on; 0 as long as no block is full."""

    def reserve(self, nbytes: int, item_bytes: int) -> Sequence[Span]:
        """Memory for the next bytes of such items: to be filled before the next call."""
        lane = self._lanes.get(item_bytes)
        if lane is None:
            lane = self._lanes[item_bytes] = _Lane()
        elif lane.used == BLOCK_BYTES or len(lane.blocks) > 1:
            self._hand_on_full(lane, item_bytes)
        spans = []
        while nbytes:
            if lane.used == BLOCK_BYTES:
                lane.blocks.append(self._memory.take())
                lane.used = 0
            begin, lane.used = lane.used, min(lane.used + nbytes, BLOCK_BYTES)
            spans.append(Span(lane.blocks[-1], begin, lane.used))
            nbytes -= lane.used - begin
        return spans

    def keep(self, data: memoryview, item_bytes: int) -> Sequence[Span]:
        """Copy the next bytes of such items."""
        spans = self.reserve(len(data), item_bytes)
        for span in spans:
            span.view[:] = data[: len(span.view)]
            data = data[len(span.view) :]
        return spans

    def end(self) -> None:
        """Nothing comes any more: hand on what is full."""
        for item_bytes, lane in self._lanes.items():
            self._hand_on_full(lane, item_bytes)

    @property
    def rest(self) -> dict[int, list[memoryview]]:
        """By size of the items, what was not handed on."""
        return {
            item_bytes: [
                *(block.view for block in lane.blocks[:-1]),
                *(block.view[: lane.used] for block in lane.blocks[-1:]),
            ]
            for item_bytes, lane in self._lanes.items()
        }

    def give_back(self) -> None:
        """Nobody reads the rest any more."""
        for lane in self._lanes.values():
            for block in lane.blocks:
                self._memory.give_back(block)
        self._lanes.clear()

    def _hand_on_full(self, lane: _Lane, item_bytes: int) -> None:
        num_full = len(lane.blocks) - (lane.used < BLOCK_BYTES)
        if num_full and self.streamed_items in (0, item_bytes):
            self.streamed_items = item_bytes
            for block in lane.blocks[:num_full]:
                self._hand_on(block)
            del lane.blocks[:num_full]
