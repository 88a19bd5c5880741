"""Writes that are checked: all of the bytes, or one line that names the file and what it needs."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

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
