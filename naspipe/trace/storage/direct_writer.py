"""Long files written past the page cache: no second copy there, no pages that push others out."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

STAGING_BYTES = 4 * 1024 * 1024
"""How much is written at a time; a multiple of every block size."""


class DirectWriter:
    """Writes an open file from its beginning; where its file system cannot, as any other.

    Args:
        descriptor: of the file, at its beginning. What is written is on disk after an fsync.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._staging = memoryview(mmap.mmap(-1, STAGING_BYTES))
        self._filled = 0
        self._set_direct(True)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        rest = memoryview(data)
        while rest:
            fits = rest[: STAGING_BYTES - self._filled]
            self._staging[self._filled : self._filled + len(fits)] = fits
            self._filled += len(fits)
            rest = rest[len(fits) :]
            if self._filled == STAGING_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write what is left."""
        self._set_direct(False)  # its length is no multiple of a block
        self._flush()

    def _flush(self) -> None:
        rest, self._filled = self._staging[: self._filled], 0
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set_direct(False):
                    raise

    def _set_direct(self, wanted: bool) -> bool:
        """Whether that was a change; a system or file system without it stays as it is."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        changed = flags | O_DIRECT if wanted else flags & ~O_DIRECT
        if changed == flags:
            return False
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, changed)
        except OSError:
            return False
        return True


O_DIRECT: int = getattr(os, "O_DIRECT", 0)
