"""Files that appear whole or not at all, and JSON that every reader accepts."""

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
"""Errors that room on the disk would mend."""
STORAGE = (*SPACE, errno.EROFS, errno.EFBIG, errno.EIO)
"""Errors of where files are, and of nothing else."""

_KNOWN = "naspipe_known"


def note_room(error: OSError, path: Path, needed_bytes: int) -> None:
    """Have an error know, for :func:`cannot_write`, what was to be written, and the room there.

    To be called before anything is tidied up, which makes room. What it knows already, it keeps.
    """
    vars(error).setdefault(_KNOWN, (needed_bytes, _room(path, error)))


@contextmanager
def writing(path: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Say of a file that cannot be written which one it is, and what it needs.

    Args:
        path: of the file.
        needed_bytes: how much is to be written, where that is known.

    Raises:
        StorageError: in place of an error of the operating system.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, needed_bytes) from error


@contextmanager
def named_storage(place: Path) -> Iterator[None]:
    """Turn what the storage refused to any writer into one line.

    Args:
        place: named where the error names no file.

    Raises:
        StorageError: in place of an error of the operating system that is the storage's.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        raise cannot_write(Path(error.filename or place), error) from error


def cannot_write(path: Path, error: OSError, needed_bytes: int = 0) -> StorageError:
    """One line on a file that cannot be written."""
    known_bytes, room = vars(error).get(_KNOWN) or (0, _room(path, error))
    needed_bytes = needed_bytes or known_bytes
    need = f" ({needed_bytes:,} bytes to write)" if needed_bytes else ""
    said = " ".join(str(error.strerror or error).split())
    return StorageError(
        f"{path} cannot be written{need}: [Errno {error.errno}] {said}{room}; "
        f"free or add storage (a run goes on with --resume)"
    )


def write_whole(file: RawIOBase, data: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part, and fails with the rest.

    Raises:
        OSError: with the first byte that is refused.
    """
    left = memoryview(data)
    while left:
        taken = file.write(left)
        if not taken:
            raise OSError(errno.EIO, "the file took nothing")
        left = left[taken:]


def _room(path: Path, error: OSError) -> str:
    """What the system says of the bound that was met."""
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f" (ulimit -f: {limit:,} bytes a file)" if limit != resource.RLIM_INFINITY else ""
    if error.errno not in SPACE:
        return ""
    try:  # the directory may be gone: nothing is left of what could not begin
        found = os.statvfs(next(each for each in path.absolute().parents if each.exists()))
    except OSError:
        return ""
    free = f"{found.f_bavail * found.f_frsize:,} bytes free there"
    has_names = found.f_favail or not found.f_files
    return f" ({free})" if has_names else f" ({free}, but no more files: its inodes are used up)"


@contextmanager
def atomic_file(path: Path, needed_bytes: int = 0) -> Iterator[BinaryIO]:
    """A file to write that takes the name ``path`` when whole and on disk, or leaves no trace.

    Args:
        path: of the file.
        needed_bytes: how much is to be written, where that is known.

    Raises:
        OSError: when it cannot be written; its ``filename`` is the path, and it knows the need.
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
    """Write a JSON object atomically; a NaN or infinity becomes the string ``nan``, ``inf``."""
    text = json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False)
    data = text.encode() + b"\n"
    with atomic_file(path, len(data)) as file:
        file.write(data)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def sync_directory(path: Path) -> None:
    """Put the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PAGE_BYTES = 4096
"""Memory, place and length of what is written so are multiples of it."""
_MOVED_BYTES = 1024 * PAGE_BYTES
"""How much is moved at a time."""


class DirectWriter:
    """Writes to places of an open file; where its file system cannot do so directly, as any other.

    Args:
        descriptor: of the file. What is written is on disk after an fsync.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_able = bool(O_DIRECT)

    def write_pages(self, data: memoryview, offset: int) -> None:
        """Write whole pages of aligned memory to a place that is a multiple of one."""
        self._is_able = self._is_able and self._set_direct(True)
        try:
            self._write(data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_able:
                raise
            self._is_able = False
            self.write(data, offset)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write anything anywhere."""
        self._set_direct(False)
        self._write(memoryview(data), offset)

    def move(self, length: int, offset: int, later: int) -> None:
        """Have bytes of the file at a later place."""
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
        """Whether the file is so now; a system or file system without it stays as it is."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        changed = flags | O_DIRECT if wanted else flags & ~O_DIRECT
        if changed != flags:
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, changed)
            except OSError:
                return False
        return True


O_DIRECT: int = getattr(os, "O_DIRECT", 0)
