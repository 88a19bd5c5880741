"""Shards of checkpoints: safetensors files at byte level, with a checksum for every piece.

The safetensors layout (length of a JSON header, the header, then the bytes of all tensors)
is read here without torch, so that every dtype keeps its exact bytes. :mod:`.shard_writer` writes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from isal.isal_zlib import crc32

from naspipe.config.errors import LogError
from naspipe.config.text import parse_json
from naspipe.trace.snapshots.shard_headers import HEADER_LENGTH, ITEM_BYTES, Shape, header_digest

_MAX_HEADER_BYTES = 100_000_000


class RawTensor(NamedTuple):
    """A tensor as bytes: ``dtype`` by its safetensors name (``F32``, ``BF16``, ``I64``),
    ``data`` contiguous and little-endian."""

    dtype: str
    shape: Shape
    data: bytes


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


def _check_length(name: str, dtype: str, shape: Shape, length: int) -> None:
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{name}: dtype {dtype!r}, expected one of {', '.join(ITEM_BYTES)}")
    expected = ITEM_BYTES[dtype] * math.prod(shape)
    if length != expected or any(size < 0 for size in shape):
        raise ValueError(f"{name}: {dtype} of shape {shape} has {expected} bytes, found {length}")
