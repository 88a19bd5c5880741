"""Shards of checkpoints: safetensors files at byte level, with a checksum for every piece.

The safetensors layout (length of a JSON header, the header, then the bytes of all tensors)
is read and written here without torch, so that every dtype keeps its exact bytes. Tensors come
packed: a layer has dozens, and what is done once for each of them would hold the training up.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from isal.isal_zlib import crc32

from naspipe.core.errors import LogError
from naspipe.core.json_text import parse_json
from naspipe.trace.storage.direct_writer import DirectWriter
from naspipe.trace.storage.whole_files import atomic_file

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one element of each dtype, by its safetensors name."""

_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000

Shape = tuple[int, ...]


class RawTensor(NamedTuple):
    """A tensor as bytes: ``dtype`` by its safetensors name (``F32``, ``BF16``, ``I64``),
    ``data`` contiguous and little-endian."""

    dtype: str
    shape: Shape
    data: bytes


class Packed(NamedTuple):
    """Tensors of one dtype, by name and shape, with their bytes one after another."""

    dtype: str
    tensors: tuple[tuple[str, Shape], ...]
    data: bytes | memoryview


def pack(tensors: Mapping[str, RawTensor]) -> tuple[Packed, ...]:
    """The same tensors, those of each dtype in one piece."""
    by_dtype: dict[str, list[str]] = {}
    for name, raw in tensors.items():
        by_dtype.setdefault(raw.dtype, []).append(name)
    return tuple(
        Packed(
            dtype,
            tuple((name, tensors[name].shape) for name in names),
            b"".join(tensors[name].data for name in names),
        )
        for dtype, names in by_dtype.items()
    )


def write_shard(
    directory: Path, name: str, layers: Mapping[str, Sequence[Packed]]
) -> dict[str, Any]:
    """Write one shard, whole or not at all; returns its entry for the manifest's ``shards``.

    What ``layers`` are called goes before the names of their tensors: ``{stream}/{label}/`` and
    ``param/{name}``, ``buffer/{name}``, ``optimizer/{param name}/{state key}``; the parameters of
    an older version that may still be read, ``version/{version}/{name}``.

    Raises:
        LogError: when the bytes of tensors do not fit their dtype and shapes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Larger items first, so that every tensor is aligned.
    pieces = sorted(
        ((prefix, packed) for prefix, each in layers.items() for packed in each),
        key=lambda piece: (-_item_bytes(*piece), piece[0]),
    )
    entries: list[str] = []
    offset = 0
    for prefix, packed in pieces:
        if packed.tensors:
            entries.append(_entries(prefix, packed, offset))
        offset += len(packed.data)
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    header = _HEADER_LENGTH.pack(len(text)) + text
    checksums = []
    with atomic_file(directory / name, len(header) + offset) as file:
        writer = DirectWriter(file.fileno())
        writer.write(header)
        for _, (_, _, data) in pieces:
            checksums.append([len(data), crc32(data)])
            writer.write(data)
        writer.finish()
    return {
        "file": name,
        "bytes": len(header) + offset,
        "header_blake2b": _header_digest(header),
        "crc32": checksums,
    }


def read_shard(directory: Path, entry: Mapping[str, Any]) -> dict[str, RawTensor]:
    """The tensors of a shard, by name, when every byte is as its entry in the manifest says.

    Raises:
        LogError: when the file is damaged or missing.
        KeyError, TypeError, ValueError: when the entry is not one.
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
    """The names of a shard's tensors, of which nothing is read.

    Raises:
        LogError: when the file is damaged or missing.
        KeyError, TypeError, ValueError: when the entry is not one.
    """
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
    """What the header says, and how many bytes of the file it takes."""
    try:
        prefix = file.read(_HEADER_LENGTH.size)
        (size,) = _HEADER_LENGTH.unpack(prefix)
        if size > min(_MAX_HEADER_BYTES, length):
            raise ValueError(f"a header of {size} bytes")
        text = file.read(size)
        found = _header_digest(prefix + text)
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
    """Tensors in file order; they must follow one another without gaps to the end."""
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
            raw = RawTensor(
                entry["dtype"], tuple(entry["shape"]), data[start - begin : stop - begin]
            )
            _check_length(name, raw.dtype, raw.shape, len(raw.data))
            tensors[name], end = raw, stop
        if any(pieces) or end != begin + len(data):
            raise ValueError(f"tensors end at {end}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: expected a safetensors file, found {error}") from error
    return tensors


def _entries(prefix: str, packed: Packed, offset: int) -> str:
    """The header's part for one piece that begins at a byte of the data.

    Raises:
        LogError: when its bytes do not fit.
    """
    text, ends = _template(packed.dtype, packed.tensors)
    if len(packed.data) != ends[-1]:
        raise LogError(
            f"{prefix}{packed.tensors[0][0]}: {packed.dtype} of shape {packed.tensors[0][1]} and "
            f"{len(packed.tensors) - 1} more has {ends[-1]} bytes, found {len(packed.data)}"
        )
    name = json.dumps(prefix)[1:-1]
    places: list[object] = []
    start = offset
    for end in ends:
        places += (name, start, offset + end)
        start = offset + end
    return text % tuple(places)


@lru_cache(maxsize=4096)
def _template(dtype: str, tensors: tuple[tuple[str, Shape], ...]) -> tuple[str, list[int]]:
    """A piece's part of the header without prefixes and places, and where its tensors end."""
    parts, sizes = [], []
    for name, shape in tensors:
        if any(size < 0 for size in shape):
            raise LogError(f"{name}: {dtype} of shape {shape}")
        fixed = json.dumps({"dtype": dtype, "shape": shape}, separators=(",", ":"))[:-1]
        quoted = json.dumps(name)[1:-1].replace("%", "%%")
        parts.append(f'"%s{quoted}":{fixed},"data_offsets":[%d,%d]}}')
        sizes.append(ITEM_BYTES[dtype] * math.prod(shape))
    return ",".join(parts), list(accumulate(sizes))


def _header_digest(header: bytes) -> str:
    return hashlib.blake2b(header, digest_size=32).hexdigest()


def _item_bytes(prefix: str, packed: Packed) -> int:
    if packed.dtype not in ITEM_BYTES:
        raise LogError(
            f"{prefix}{packed.tensors[0][0] if packed.tensors else ''}: dtype "
            f"{packed.dtype!r}, expected one of {', '.join(ITEM_BYTES)}"
        )
    return ITEM_BYTES[packed.dtype]


def _check_length(name: str, dtype: str, shape: Shape, length: int) -> None:
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{name}: dtype {dtype!r}, expected one of {', '.join(ITEM_BYTES)}")
    expected = ITEM_BYTES[dtype] * math.prod(shape)
    if length != expected or any(size < 0 for size in shape):
        raise ValueError(f"{name}: {dtype} of shape {shape} has {expected} bytes, found {length}")
