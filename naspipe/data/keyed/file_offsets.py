"""Files that were opened before a fork: each process gets a place of its own in them."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path


def own_offsets() -> None:
    """Open every file again that this process has inherited for reading, at the same place.

    A forked process shares the file offset of each open file with its parent and with all that are
    forked from it. Where a data set has opened a file before the fork, a ``seek`` of one process
    then moves the place at which another one is about to read, and batches get items of other rows.

    To be called in a forked process before it does anything else. Descriptors keep their numbers,
    so file objects, archives and C libraries that hold them go on working. Files that may be
    written, pipes, sockets and devices are left alone, as are those that cannot be opened again.
    """
    with suppress(OSError):
        for path in [*Path("/proc/self/fd").iterdir()]:
            with suppress(OSError, ValueError):
                _reopen(int(path.name))


def _reopen(descriptor: int) -> None:
    if descriptor <= 2 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_ACCMODE != os.O_RDONLY or flags & getattr(os, "O_PATH", 0):
        return
    inherits = os.get_inheritable(descriptor)
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    again = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    try:
        os.lseek(again, place, os.SEEK_SET)
        os.dup2(again, descriptor, inheritable=inherits)
    finally:
        os.close(again)
