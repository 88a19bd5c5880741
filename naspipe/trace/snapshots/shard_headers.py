"""The headers of shards: what they say of tensors that follow one another."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from naspipe.config.errors import LogError

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one element of each dtype, by its safetensors name."""

HEADER_LENGTH = struct.Struct("<Q")
"""What comes before a header: the bytes of its text."""

Shape = tuple[int, ...]


class Listing:
    """Tensors of one dtype, by name and shape, one after another.

    A layer has dozens, and they are those of the checkpoint before. So the text for them is made
    once, but for where they are.

    Args:
        dtype: by its safetensors name.
        tensors: name and shape of each.

    Raises:
        LogError: when there is no such dtype or shape.
    """

    def __init__(self, dtype: str, tensors: tuple[tuple[str, Shape], ...]) -> None:
        if dtype not in ITEM_BYTES:
            known = ", ".join(ITEM_BYTES)
            raise LogError(f"{tensors[:1]}: dtype {dtype!r}, expected one of {known}")
        self.dtype = dtype
        self.tensors = tensors
        self.item_bytes = ITEM_BYTES[dtype]
        parts: list[str] = []
        sizes: list[int] = []
        for name, shape in tensors:
            if any(size < 0 for size in shape):
                raise LogError(f"{name}: {dtype} of shape {shape}")
            fixed = json.dumps({"dtype": dtype, "shape": shape}, separators=(",", ":"))[:-1]
            quoted = json.dumps(name)[1:-1].replace("%", "%%")
            parts.append(f'"%s{quoted}":{fixed},"data_offsets":[%d,%d]}}')
            sizes.append(self.item_bytes * math.prod(shape))
        self.sizes = tuple(sizes)
        """Of the tensors, in bytes."""
        self._text = ",".join(parts)
        self._ends = list(accumulate(sizes))

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return self._ends[-1] if self._ends else 0

    def entries(self, prefix: str, offset: int) -> str:
        """The header's part for them, where the first begins at this byte of the data.

        ``prefix`` goes before their names. Without tensors the text is empty.
        """
        name = json.dumps(prefix)[1:-1]
        places: list[object] = []
        start = offset
        for end in self._ends:
            places += (name, start, offset + end)
            start = offset + end
        return self._text % tuple(places)


class Piece(NamedTuple):
    """Tensors of one layer and dtype, and the CRC32 of their bytes."""

    prefix: str
    listing: Listing
    crc32: int


class _Items:
    """What there is with items of one size, and what the header says of it if it comes first."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.entries: list[str] = []
        self.nbytes = 0


class Header:
    """The header of one shard, made while its pieces come.

    Those with items of the same size follow one another in the file.
    """

    def __init__(self) -> None:
        self._items: dict[int, _Items] = defaultdict(_Items)

    def add(self, prefix: str, listing: Listing, crc32: int) -> None:
        """The next piece with items of its size.

        ``prefix`` goes before the names of the tensors: ``{stream}/{label}/``. Their own are
        ``param/{name}``, ``buffer/{name}``, ``optimizer/{param name}/{state key}``; the parameters
        of an older version that may still be read, ``version/{version}/{name}``.
        """
        items = self._items[listing.item_bytes]
        if listing.tensors:
            items.entries.append(listing.entries(prefix, items.nbytes))
        items.pieces.append(Piece(prefix, listing, crc32))
        items.nbytes += listing.nbytes

    @property
    def nbytes(self) -> dict[int, int]:
        """Of all tensors, by the size of their items."""
        return {size: items.nbytes for size, items in self._items.items()}

    @property
    def names(self) -> list[str]:
        """Of all tensors, without what goes before them."""
        pieces = (piece for items in self._items.values() for piece in items.pieces)
        return [name for piece in pieces for name, _ in piece.listing.tensors]

    def text(self, order: Sequence[int]) -> bytes:
        """What it says where items of these sizes follow one another."""
        entries: list[str] = []
        offset = 0
        for items in map(self._items.__getitem__, order):
            if not offset:
                entries += items.entries
                offset = items.nbytes
                continue
            for prefix, listing, _ in items.pieces:
                if listing.tensors:
                    entries.append(listing.entries(prefix, offset))
                offset += listing.nbytes
        return ("{" + ",".join(entries) + "}").encode()

    def checksums(self, order: Sequence[int]) -> list[list[int]]:
        """Length and CRC32 of each piece where items of these sizes follow one another."""
        pieces = (piece for size in order for piece in self._items[size].pieces)
        return [[piece.listing.nbytes, piece.crc32] for piece in pieces]


def header_digest(header: bytes) -> str:
    """Of a header with its length before it."""
    return hashlib.blake2b(header, digest_size=32).hexdigest()
