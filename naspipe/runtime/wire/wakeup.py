"""A flag that ends a wait for messages from another thread of the process."""

from __future__ import annotations

import os
import select
import time

TICK_SECONDS = 1e-3
"""In which polls count. A wait that is shorter, which is one for a copy, is slept through."""


class Wakeup:
    """A file descriptor that is readable from ``set`` to ``clear``; a context manager."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """For pollers."""
        return self._fd

    def set(self) -> None:
        """End the wait; from any thread."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make the next wait wait again."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return  # it was not set

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for nothing but this; whether it was set in time."""
        if timeout_seconds < TICK_SECONDS:
            time.sleep(timeout_seconds)
            timeout_seconds = 0
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(timeout_seconds * 1000))
