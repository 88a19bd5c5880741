"""Append-only files of framed records: a header, then the length, CRC32 and payload of each record.

The CRC32 also covers the length, so that a hole of zeros is never a valid record. A process that
dies while writing leaves a torn last record, which readers drop and writers overwrite. A damaged
record followed by whole records is an error, because it cannot be repaired.

A payload may have a head with its own checksum, so that a reader can skip the rest of the record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self
from zlib import crc32

from naspipe.config.errors import LogError
from naspipe.store.files import write_whole, writing

MAX_PAYLOAD_BYTES = 1 << 20
"""Maximum payload of a record, so that a damaged length cannot request much memory."""

MAGIC_BYTES = 8
_VERSION = struct.Struct("<I")
HEADER_BYTES = MAGIC_BYTES + _VERSION.size
FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def encode_frame(payload: bytes) -> bytes:
    """Encode one record; LogError if the payload has more than ``MAX_PAYLOAD_BYTES``."""
    length = len(payload)
    if length > MAX_PAYLOAD_BYTES:
        raise LogError(
            f"a record of {length} bytes is too long: expected {MAX_PAYLOAD_BYTES} at most"
        )
    return FRAME.pack(length, crc32(payload, crc32(_LENGTH.pack(length)))) + payload


class FramedWriter:
    """Appends records to a file, which is created, or continued after its last whole record.

    Records are buffered in memory until :meth:`flush` writes them to the file, without an fsync.
    ``magic`` is 8 bytes that identify the kind of file; ``version`` is the version of its schema.

    Raises:
        LogError: if the file exists and is damaged, or is of another kind.
        StorageError: if it cannot be written.
    """

    def __init__(self, path: Path, magic: bytes, version: int) -> None:
        header = header_of(magic, version)
        data = path.read_bytes() if path.exists() else b""
        end = len(header) if len(data) >= len(header) else 0
        for _, end in _frames(data, path, header):  # noqa: B007
            pass
        self._path = path
        with writing(path):
            self._file = path.open("r+b" if end else "wb", buffering=0)
        self._frames: list[bytes] = []
        if end:
            self._file.truncate(end)
            self._file.seek(end)
        else:
            self._frames.append(header)
            self.flush()

    def append(self, payload: bytes) -> None:
        """Add one record; see :func:`encode_frame`."""
        self._frames.append(encode_frame(payload))

    def flush(self) -> None:
        """Write the buffered records; StorageError if they cannot be written."""
        if self._frames:
            data = b"".join(self._frames)
            self._frames.clear()
            with writing(self._path, len(data)):
                write_whole(self._file, data)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_frames(path: Path, magic: bytes, version: int) -> Iterator[bytes]:
    """Yield the payloads of a file in order; a torn last record is dropped.

    Raises:
        LogError: naming the file and the offset of a damaged record.
    """
    data = path.read_bytes()
    for start, end in _frames(data, path, header_of(magic, version)):
        yield data[start:end]


def header_of(magic: bytes, version: int) -> bytes:
    if len(magic) != MAGIC_BYTES:
        raise ValueError(f"expected {MAGIC_BYTES} bytes of magic, found {magic!r}")
    return magic + _VERSION.pack(version)


def _frames(data: bytes, path: Path, header: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each payload."""
    check_header(data, path, header)
    offset = len(header)
    while offset < len(data):
        end = frame_end(data, offset)
        if end is None:
            check_torn(data[offset:], len(data) - offset, path, offset)
            return
        yield offset + FRAME.size, end
        offset = end


def check_header(data: bytes, path: Path, header: bytes) -> None:
    """Check the beginning of a file, which may be torn; LogError if it is of another kind."""
    found = data[: len(header)]
    if header.startswith(found):
        return
    if found[:MAGIC_BYTES] != header[:MAGIC_BYTES]:
        raise LogError(
            f"{path}, offset 0: expected the header {header[:MAGIC_BYTES]!r}, "
            f"found {found[:MAGIC_BYTES]!r}"
        )
    raise LogError(
        f"{path}, offset {MAGIC_BYTES}: expected schema version "
        f"{_VERSION.unpack(header[MAGIC_BYTES:])[0]}, found bytes {found[MAGIC_BYTES:].hex()}; "
        f"read it with the naspipe that wrote it"
    )


def frame_end(data: bytes, offset: int) -> int | None:
    """Return the end of the record at ``offset``; None if there is no whole record."""
    if offset + FRAME.size > len(data):
        return None
    length, checksum = FRAME.unpack_from(data, offset)
    end: int = offset + FRAME.size + length
    if length > MAX_PAYLOAD_BYTES or end > len(data):
        return None
    found = crc32(
        memoryview(data)[offset + FRAME.size : end], crc32(data[offset : offset + _LENGTH.size])
    )
    return end if found == checksum else None


def check_torn(data: bytes, tail: int, path: Path, offset: int) -> None:
    """Check that the rest of a file, which is not a whole record, can be a torn last record.

    Args:
        data: the rest, truncated to the maximum length of a record.
        tail: number of bytes up to the end of the file.
        path: path of the file.
        offset: start of the rest.
    """
    if tail > FRAME.size + MAX_PAYLOAD_BYTES:
        raise LogError(f"{path}, offset {offset}: expected a record, found {tail} unreadable bytes")
    for later in range(1, len(data) - FRAME.size + 1):
        if frame_end(data, later) is not None:
            raise LogError(
                f"{path}, offset {offset}: expected a record with a matching CRC32, found a "
                f"damaged one; whole records follow at offset {offset + later}"
            )


_LEAD = struct.Struct("<II")
_HOLE_BYTES = 64
_BEGIN = FRAME.size + _LEAD.size


def headed(head: bytes, body: bytes) -> bytes:
    """Return a payload whose head can be read without the body."""
    return _LEAD.pack(len(head), crc32(head)) + head + body


def read_headed(
    path: Path, magic: bytes, version: int, wants: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the head of each record, in order, and the body of each wanted one.

    A torn last record is omitted if it is wanted, or if its head is incomplete.

    Raises:
        LogError: naming the file and the offset of a damaged record.
    """
    with path.open("rb") as file:
        size, descriptor = os.fstat(file.fileno()).st_size, file.fileno()
        check_header(os.pread(descriptor, HEADER_BYTES, 0), path, header_of(magic, version))
        offset = HEADER_BYTES
        while offset < size:
            head, end = _head(descriptor, offset, size)
            wanted = head is not None and wants(head)
            frame = os.pread(descriptor, end - offset, offset) if wanted else b""
            if head is None or (wanted and frame_end(frame, 0) is None):
                # A torn record has no end, or its end never reached the disk.
                last = os.pread(descriptor, _HOLE_BYTES, max(offset, end - _HOLE_BYTES))
                if any(last[: end - offset]):
                    raise LogError(
                        f"{path}, offset {offset}: expected a record with a matching CRC32, "
                        f"found a damaged one"
                    )
                rest = os.pread(descriptor, _BEGIN + MAX_PAYLOAD_BYTES, offset)
                check_torn(rest, os.fstat(descriptor).st_size - offset, path, offset)
                return
            yield head, frame[_BEGIN + len(head) :] if wanted else None
            offset = end


def _head(descriptor: int, offset: int, size: int) -> tuple[bytes | None, int]:
    """Return the head of the record at an offset, and the end of the record.

    The head is None if it is incomplete; the end is ``offset`` if it is not in the file.
    """
    begin = os.pread(descriptor, _BEGIN, offset)
    if len(begin) < _BEGIN:
        return None, offset
    length, _ = FRAME.unpack_from(begin)
    head_bytes, checksum = _LEAD.unpack_from(begin, FRAME.size)
    end = offset + FRAME.size + length
    if length > MAX_PAYLOAD_BYTES or end > size:
        return None, offset
    if _LEAD.size + head_bytes > length:
        return None, end
    head = os.pread(descriptor, head_bytes, offset + _BEGIN)
    return (head if crc32(head) == checksum else None), end
