"""Append-only files of framed records: a header, then length, CRC32 and payload of each.

The CRC32 covers the length too, so that a hole of zeros is never a record. A process that
dies while it writes leaves a torn last record; that one is dropped. Any record that is
damaged while whole records follow it is an error, because nothing can repair it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

from naspipe.config.errors import LogError
from naspipe.store.files import write_whole, writing

MAX_PAYLOAD_BYTES = 1 << 20
"""No record is longer, so a damaged length can never ask for much memory."""

MAGIC_BYTES = 8
_VERSION = struct.Struct("<I")
HEADER_BYTES = MAGIC_BYTES + _VERSION.size
FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def encode_frame(payload: bytes) -> bytes:
    """One record as it stands in the file.

    Raises:
        LogError: when the payload is longer than ``MAX_PAYLOAD_BYTES``.
    """
    length = len(payload)
    if length > MAX_PAYLOAD_BYTES:
        raise LogError(
            f"a record of {length} bytes is too long: expected {MAX_PAYLOAD_BYTES} at most"
        )
    return FRAME.pack(length, crc32(payload, crc32(_LENGTH.pack(length)))) + payload


class FramedWriter:
    """Appends records to a file; makes it, or repairs the torn tail of one that exists.

    Records are kept in memory until :meth:`flush`, which hands them to the operating system.
    ``magic`` is 8 bytes that say what the file holds; ``version`` is its schema's.

    Raises:
        LogError: when the file exists and is damaged, or holds something else.
        StorageError: when it cannot be written.
    """

    def __init__(self, path: Path, magic: bytes, version: int) -> None:
        header = header_of(magic, version)
        end = _repaired_end(path, header)
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
        """Write the records kept so far.

        Raises:
            StorageError: when they cannot be written.
        """
        if self._frames:
            data = b"".join(self._frames)
            self._frames.clear()
            with writing(self._path, len(data)):
                write_whole(self._file, data)

    def fileno(self) -> int:
        """The open file's descriptor."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_frames(path: Path, magic: bytes, version: int) -> Iterator[bytes]:
    """The payloads of a file, in order; a torn last record is dropped.

    Raises:
        LogError: naming the file and the offset of what is damaged.
    """
    data = path.read_bytes()
    for start, end in _frames(data, path, header_of(magic, version)):
        yield data[start:end]


def header_of(magic: bytes, version: int) -> bytes:
    """The bytes that a file begins with."""
    if len(magic) != MAGIC_BYTES:
        raise ValueError(f"expected {MAGIC_BYTES} bytes of magic, found {magic!r}")
    return magic + _VERSION.pack(version)


def _repaired_end(path: Path, header: bytes) -> int:
    """Where to append: behind the last whole record, or 0 for a file to begin anew."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    end = len(header) if len(data) >= len(header) else 0
    for _, end in _frames(data, path, header):  # noqa: B007
        pass
    return end


def _frames(data: bytes, path: Path, header: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each payload."""
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
    """Check the beginning of a file.

    Raises:
        LogError: when it is another's, and not a torn one.
    """
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
    """Where the record at ``offset`` ends, or None unless a whole one stands there."""
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
    """Check that what stands at an offset can be the torn last record.

    Args:
        data: what stands there; of a longer rest as much as a record may have.
        tail: bytes from there to the end of the file.
        path: of the file.
        offset: of what is no whole record.

    Raises:
        LogError: when it cannot.
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
