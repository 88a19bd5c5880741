"""Framed records with a head in front: a reader who wants few of them reads no others' bodies.

A payload is the head's length and CRC32, the head, and the body. The head is checked by itself.
The record's own CRC32 covers all of it and is looked at where the body is asked for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from naspipe.config.errors import LogError
from naspipe.trace.storage.framing import (
    FRAME,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    check_header,
    check_torn,
    frame_end,
    header_of,
)

_LEAD = struct.Struct("<II")
_HOLE_BYTES = 64
_BEGIN = FRAME.size + _LEAD.size


def headed(head: bytes, body: bytes) -> bytes:
    """The payload of one record."""
    return _LEAD.pack(len(head), crc32(head)) + head + body


def read_headed(
    path: Path, magic: bytes, version: int, wants: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, bytes]]:
    """Head and body of each wanted record, in order; a torn last one is left out.

    Raises:
        LogError: naming the file and the offset of what is damaged.
    """
    for head, body in _records(path, magic, version, wants):
        if body is not None:
            yield head, body


def read_heads(path: Path, magic: bytes, version: int) -> Iterator[bytes]:
    """Head of each record, in order; of a torn last one, if it is whole.

    Raises:
        LogError: as :func:`read_headed`.
    """
    for head, _ in _records(path, magic, version, lambda head: False):
        yield head


def _records(
    path: Path, magic: bytes, version: int, wants: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, bytes | None]]:
    with path.open("rb") as file:
        size, descriptor = os.fstat(file.fileno()).st_size, file.fileno()
        header = header_of(magic, version)
        check_header(os.pread(descriptor, HEADER_BYTES, 0), path, header)
        offset = HEADER_BYTES
        while offset < size:
            head, end = _head(descriptor, offset, size)
            wanted = head is not None and wants(head)
            frame = os.pread(descriptor, end - offset, offset) if wanted else b""
            if head is None or (wanted and frame_end(frame, 0) is None):
                _check_torn(descriptor, offset, end, path)
                return
            yield head, frame[_BEGIN + len(head) :] if wanted else None
            offset = end


def _head(descriptor: int, offset: int, size: int) -> tuple[bytes | None, int]:
    """The head of the record at an offset, and where that ends, as far as it can be said.

    No head where none stands there; the offset itself where the record's end is not in the file.
    """
    begin = os.pread(descriptor, _BEGIN, offset)
    if len(begin) < _BEGIN:
        return None, offset
    length, _ = FRAME.unpack_from(begin)
    of_head, checksum = _LEAD.unpack_from(begin, FRAME.size)
    end = offset + FRAME.size + length
    if length > MAX_PAYLOAD_BYTES or end > size:
        return None, offset
    if _LEAD.size + of_head > length:
        return None, end
    head = os.pread(descriptor, of_head, offset + _BEGIN)
    return (head if crc32(head) == checksum else None), end


def _check_torn(descriptor: int, offset: int, end: int, path: Path) -> None:
    """Refuse what is damaged: a torn record has an end missing, or one that never came to disk."""
    if any(os.pread(descriptor, _HOLE_BYTES, max(offset, end - _HOLE_BYTES))[: end - offset]):
        raise LogError(
            f"{path}, offset {offset}: expected a record with a matching CRC32, found a damaged one"
        )
    tail = os.fstat(descriptor).st_size - offset
    check_torn(os.pread(descriptor, _BEGIN + MAX_PAYLOAD_BYTES, offset), tail, path, offset)
