"""A flag that ends a wait for messages from another thread of the process."""

from __future__ import annotations

import os
import select
import time

TICK_SECONDS = 1e-3
"""In which polls count."""
NAP_SECONDS = 100e-6
"""How long a wait that is shorter is slept through at most, deaf: it is one for a copy."""


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
        """Wait for nothing but this; whether it was set. It may end up to a tick too early."""
        if timeout_seconds < TICK_SECONDS:
            time.sleep(min(timeout_seconds, NAP_SECONDS))
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(int(timeout_seconds / TICK_SECONDS)))
