"""Shards of checkpoints: safetensors files at byte level, with a checksum for every piece.

The safetensors layout (length of a JSON header, the header, then the bytes of all tensors) is read
and written here without torch, so that every dtype keeps its exact bytes. A shard is written while
its layers are captured. Because most bytes are streamed before the header is known, the writer
leaves space for the header, and moves the data if the space was too small.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from isal.isal_zlib import crc32

from naspipe.config.errors import LogError
from naspipe.config.text import parse_json
from naspipe.store.files import PAGE_BYTES, DirectWriter, atomic_file, note_room

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one element of each dtype, by its safetensors name."""

HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000

Shape = tuple[int, ...]


class RawTensor(NamedTuple):
    """A tensor as bytes: ``dtype`` by its safetensors name (``F32``, ``BF16``, ``I64``), ``data``
    contiguous and little-endian."""

    dtype: str
    shape: Shape
    data: bytes


class Listing:
    """Names and shapes of tensors of one dtype that follow one another in a file.

    A layer has dozens of tensors with the same names and shapes in every checkpoint, so their part
    of the header is formatted only once, except for the offsets. ``sizes`` are in bytes.

    Raises:
        LogError: if a dtype or shape is unknown.
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
        self._text = ",".join(parts)
        self._ends = list(accumulate(sizes))

    @property
    def nbytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def entries(self, prefix: str, offset: int) -> str:
        """Return the header's text for these tensors, the first of which starts at ``offset``.

        ``prefix`` is prepended to their names. The text is empty without tensors.
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
    """All pieces with items of one size, and the header's text if they are first in the file."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.entries: list[str] = []
        self.nbytes = 0


class Header:
    """The header of one shard, built while its pieces are written.

    Pieces with items of the same size follow one another in the file.
    """

    def __init__(self) -> None:
        self._items: dict[int, _Items] = defaultdict(_Items)

    def add(self, prefix: str, listing: Listing, crc32: int) -> None:
        """Add the next piece with items of its size.

        ``prefix``, such as ``{stream}/{label}/``, is prepended to the names of the tensors. These
        are ``param/{name}``, ``buffer/{name}``, ``optimizer/{param name}/{state key}`` and, for
        parameters of an older version that may still be read, ``version/{version}/{name}``.
        """
        items = self._items[listing.item_bytes]
        if listing.tensors:
            items.entries.append(listing.entries(prefix, items.nbytes))
        items.pieces.append(Piece(prefix, listing, crc32))
        items.nbytes += listing.nbytes

    @property
    def nbytes(self) -> dict[int, int]:
        """Bytes of all tensors, by the size of their items."""
        return {size: items.nbytes for size, items in self._items.items()}

    @property
    def names(self) -> list[str]:
        """The names of all tensors, without prefixes."""
        pieces = (piece for items in self._items.values() for piece in items.pieces)
        return [name for piece in pieces for name, _ in piece.listing.tensors]

    def text(self, order: Sequence[int]) -> bytes:
        """Return the header's text for items of these sizes in this order."""
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
        """Return length and CRC32 of each piece for items of these sizes in this order."""
        pieces = (piece for size in order for piece in self._items[size].pieces)
        return [[piece.listing.nbytes, piece.crc32] for piece in pieces]


def header_digest(header: bytes) -> str:
    """Return the digest of a header and the preceding length."""
    return hashlib.blake2b(header, digest_size=32).hexdigest()


def read_shard(directory: Path, entry: Mapping[str, Any]) -> dict[str, RawTensor]:
    """Return the tensors of a shard by name, after checking them against the manifest's entry.

    Raises:
        LogError: if the file is damaged or missing.
        KeyError, TypeError, ValueError: if the entry is malformed.
    """
    name, length = str(entry["file"]), int(entry["bytes"])
    expected = str(entry["header_blake2b"])
    checksums = [(int(size), int(crc)) for size, crc in entry["crc32"]]
    if Path(name).name != name:
        raise LogError(f"{directory}: expected a file name, found {name!r}")
    path = directory / name
    try:
        found = path.stat().st_size
        if found != length:
            raise LogError(f"{path}: expected {length} bytes, found {found}")
        with path.open("rb") as file:
            header, size = _read_header(file, length, expected, path)
            pieces = _read_pieces(file, checksums, length - size, path)
            return _cut(header, pieces, path)
    except OSError as error:
        raise LogError(f"{path}: expected a shard, found {error.strerror}") from error


def shard_names(directory: Path, entry: Mapping[str, Any]) -> list[str]:
    """Return the names of a shard's tensors, without data; errors as in :func:`read_shard`."""
    path = directory / Path(str(entry["file"])).name
    try:
        with path.open("rb") as file:
            header, _ = _read_header(file, int(entry["bytes"]), entry["header_blake2b"], path)
            return list(header)
    except OSError as error:
        raise LogError(f"{path}: expected a shard, found {error.strerror}") from error


def _read_header(
    file: BinaryIO, length: int, expected: str, path: Path
) -> tuple[dict[str, Any], int]:
    """Return the header's content, and its length in bytes, including the length field."""
    try:
        prefix = file.read(HEADER_LENGTH.size)
        (size,) = HEADER_LENGTH.unpack(prefix)
        if size > min(_MAX_HEADER_BYTES, length):
            raise ValueError(f"a header of {size} bytes")
        text = file.read(size)
        found = header_digest(prefix + text)
        if found != expected:
            raise LogError(
                f"{path} is damaged: expected a header with digest {expected[:16]}…, "
                f"found {found[:16]}…"
            )
        header = parse_json(text)
        header.pop("__metadata__", None)
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: expected a safetensors file, found {error}") from error
    return header, len(prefix) + size


def _read_pieces(
    file: BinaryIO, checksums: Sequence[tuple[int, int]], length: int, path: Path
) -> Iterator[bytes]:
    if any(size < 0 for size, _ in checksums) or sum(size for size, _ in checksums) != length:
        raise LogError(f"{path} is damaged: expected pieces of {length} bytes in all")
    for number, (size, crc) in enumerate(checksums):
        data = file.read(size)
        if len(data) != size or crc32(data) != crc:
            raise LogError(
                f"{path} is damaged: piece {number} of {size} bytes: expected CRC32 {crc:08x}, "
                f"found {crc32(data):08x}"
            )
        yield data


def _cut(header: dict[str, Any], pieces: Iterator[bytes], path: Path) -> dict[str, RawTensor]:
    """Split data into tensors, which must be contiguous and reach to the end of the file."""
    tensors: dict[str, RawTensor] = {}
    data, begin = b"", 0
    try:
        entries = sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0]))
        end = 0
        for name, entry in entries:
            start, stop = entry["data_offsets"]
            if start != end or stop < start:
                raise ValueError(f"{name} at {start} to {stop}, expected a start at {end}")
            while start < stop and start == begin + len(data):
                piece = next(pieces, None)
                if piece is None:
                    raise ValueError(f"{name} at {start} to {stop}, past the end")
                data, begin = piece, start
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            raw = RawTensor(dtype, shape, data[start - begin : stop - begin])
            if dtype not in ITEM_BYTES:
                known = ", ".join(ITEM_BYTES)
                raise ValueError(f"{name}: dtype {dtype!r}, expected one of {known}")
            expected = ITEM_BYTES[dtype] * math.prod(shape)
            if len(raw.data) != expected or any(size < 0 for size in shape):
                raise ValueError(
                    f"{name}: {dtype} of shape {shape} has {expected} bytes, found {len(raw.data)}"
                )
            tensors[name], end = raw, stop
        if any(pieces) or end != begin + len(data):
            raise ValueError(f"tensors end at {end}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: expected a safetensors file, found {error}") from error
    return tensors


class ShardWriter:
    """Writes one shard; the file is removed if an OSError occurs.

    The directory of ``path`` is created by the first write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = ExitStack()
        self._writer: DirectWriter | None = None
        self._streamed_from = 0
        self._streamed_bytes = 0

    def append(self, block: memoryview, room: int) -> None:
        """Write the next block of the items that are streamed.

        Args:
            block: page-aligned memory; its length is a multiple of the page size.
            room: estimated number of bytes to leave before the first block.
        """
        with self._or_nothing():
            writer = self._begun()
            if not self._streamed_bytes:
                self._streamed_from = _round_up(room, PAGE_BYTES)
            writer.write_pages(block, self._streamed_from + self._streamed_bytes)
        self._streamed_bytes += len(block)

    def finish(
        self, header: Header, streamed_items: int, rest: Mapping[int, Sequence[memoryview]]
    ) -> dict[str, Any]:
        """Write the rest and the header; return the shard's entry for the manifest's ``shards``.

        Args:
            header: header of all tensors; those with items of the same size in file order.
            streamed_items: size of the items that were appended; 0 for none.
            rest: all other bytes, by the size of the items.

        Raises:
            LogError: if the number of bytes does not match the header.
        """
        sizes = {*header.nbytes, *rest}
        streamed = streamed_items or max(sizes, default=1)
        ahead = sorted(size for size in sizes if size > streamed)
        behind = [streamed, *sorted((size for size in sizes if size < streamed), reverse=True)]
        for size in sizes:
            found = sum(map(len, rest.get(size, ()))) + self._streamed_bytes * (size == streamed)
            expected = header.nbytes.get(size, 0)
            if found != expected:
                raise LogError(
                    f"{self._path}: tensors with items of {size} bytes have {expected} bytes, "
                    f"found {found}"
                )
        first, last = (
            [data for s in which for data in rest.get(s, ())] for which in (ahead, behind)
        )
        text = header.text([*ahead, *behind])
        length = sum(header.nbytes.values())
        with self._or_nothing(HEADER_LENGTH.size + len(text) + length):
            writer = self._begun()
            first_bytes, before = sum(map(len, first)), self._streamed_from
            needed = HEADER_LENGTH.size + len(text) + first_bytes
            if not self._streamed_bytes:
                self._streamed_from = _round_up(needed, 8)
            elif needed > before:
                self._streamed_from = _round_up(needed, PAGE_BYTES)
                writer.move(self._streamed_bytes, before, self._streamed_from)
            begin = self._streamed_from - first_bytes
            text = text.ljust(begin - HEADER_LENGTH.size)
            text = HEADER_LENGTH.pack(len(text)) + text
            streamed_end = self._streamed_from + self._streamed_bytes
            blocks: dict[int, list[bytes | memoryview]] = {0: [text, *first], streamed_end: [*last]}
            for offset, parts in blocks.items():
                for data in parts:
                    writer.write(data, offset)
                    offset += len(data)
            self._open.close()
        return {
            "file": self._path.name,
            "bytes": begin + length,
            "header_blake2b": header_digest(text),
            "crc32": header.checksums([*ahead, *behind]),
        }

    def abort(self) -> None:
        """Close and remove the file."""
        self._open.__exit__(GeneratorExit, GeneratorExit(), None)

    @contextmanager
    def _or_nothing(self, needed_bytes: int = 0) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if isinstance(error, OSError):
                note_room(error, self._path, needed_bytes)
            self._open.__exit__(type(error), error, error.__traceback__)
            raise

    def _begun(self) -> DirectWriter:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._open.enter_context(atomic_file(self._path))
            self._writer = DirectWriter(file.fileno())
        return self._writer


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
