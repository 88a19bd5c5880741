"""Write files atomically or directly to the device, with a one-line message for each failure."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

from naspipe.config.errors import StorageError

SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors that more free space would resolve."""
STORAGE = (*SPACE, errno.EROFS, errno.EFBIG, errno.EIO)
"""Errors that only the storage can have caused."""

_KNOWN = "naspipe_known"


def note_room(error: OSError, path: Path, needed_bytes: int) -> None:
    """Attach the path, the needed bytes and the free space to an error, for :func:`cannot_write`.

    Call this before removing anything, because that frees space. Existing values are kept.
    """
    vars(error).setdefault(_KNOWN, (needed_bytes, _room(path, error)))


@contextmanager
def writing(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Convert OSError to StorageError, with the path and the number of bytes (0: unknown)."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, needed_bytes) from error


@contextmanager
def named_storage(place: Path) -> Iterator[None]:
    """Convert an OSError that the storage caused to StorageError.

    The message names ``place`` if the error names no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        raise cannot_write(Path(error.filename or place), error) from error


def cannot_write(path: Path, error: OSError, needed_bytes: int = 0) -> StorageError:
    """Make an error that explains in one line why a file cannot be written."""
    known_bytes, room = vars(error).get(_KNOWN) or (0, _room(path, error))
    needed_bytes = needed_bytes or known_bytes
    need = f" ({needed_bytes:,} bytes to write)" if needed_bytes else ""
    said = " ".join(str(error.strerror or error).split())
    return StorageError(
        f"{path} cannot be written{need}: [Errno {error.errno}] {said}{room}; "
        f"free or add storage (a run goes on with --resume)"
    )


def write_whole(file: RawIOBase, data: bytes) -> None:
    """Write all of ``data``, retrying partial writes, as happen on a disk that is nearly full."""
    left = memoryview(data)
    while left:
        taken = file.write(left)
        if not taken:
            raise OSError(errno.EIO, "the file took nothing")
        left = left[taken:]


def _room(path: Path, error: OSError) -> str:
    """Describe the limit that was reached, from information of the system."""
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f" (ulimit -f: {limit:,} bytes a file)" if limit != resource.RLIM_INFINITY else ""
    if error.errno not in SPACE:
        return ""
    try:  # the directory may be gone already
        found = os.statvfs(next(each for each in path.absolute().parents if each.exists()))
    except OSError:
        return ""
    free = f"{found.f_bavail * found.f_frsize:,} bytes free there"
    has_names = found.f_favail or not found.f_files
    return f" ({free})" if has_names else f" ({free}, but no more files: its inodes are used up)"


@contextmanager
def atomic_file(path: Path, needed_bytes: int = 0) -> Iterator[BinaryIO]:
    """Open a file that is renamed to ``path`` once it is complete and on disk, or else removed.

    Raises:
        OSError: if it cannot be written; path, free space and ``needed_bytes`` are attached.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
            note_room(error, path, needed_bytes)
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; NaN and infinity become the strings ``nan`` and ``inf``."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return repr(value)
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    text = json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False)
    data = text.encode() + b"\n"
    with atomic_file(path, len(data)) as file:
        file.write(data)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PAGE_BYTES = 4096
"""Direct writes need memory, offsets and lengths that are multiples of this."""
_MOVED_BYTES = 1024 * PAGE_BYTES

O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectWriter:
    """Writes at offsets of an open file, bypassing the page cache if the file system supports it.

    Written data are on disk after an fsync of the ``descriptor``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_able = bool(O_DIRECT)

    def write_pages(self, data: memoryview, offset: int) -> None:
        """Write whole pages of aligned memory at a multiple of the page size."""
        self._is_able = self._is_able and self._set_direct(True)
        try:
            self._write(data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_able:
                raise
            self._is_able = False
            self.write(data, offset)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write any bytes at any offset."""
        self._set_direct(False)
        self._write(memoryview(data), offset)

    def move(self, length: int, offset: int, later: int) -> None:
        """Copy ``length`` bytes of the file from ``offset`` to ``later``; ranges may overlap."""
        self._set_direct(False)
        for start in reversed(range(0, length, _MOVED_BYTES)):
            data = os.pread(self._descriptor, min(_MOVED_BYTES, length - start), offset + start)
            self._write(memoryview(data), later + start)

    def _write(self, rest: memoryview, offset: int) -> None:
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            offset += written
            rest = rest[written:]

    def _set_direct(self, wanted: bool) -> bool:
        """Switch direct writes on or off; return False if the file system refuses."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        changed = flags | O_DIRECT if wanted else flags & ~O_DIRECT
        if changed != flags:
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, changed)
            except OSError:
                return False
        return True
