"""Long files written past the page cache: no second copy there, no pages that push others out."""

from __future__ import annotations

import errno
import fcntl
import os

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
