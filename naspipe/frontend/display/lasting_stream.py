"""A stream for progress that may vanish: a terminal that is closed, a log on a full disk."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class LastingStream:
    """Hands everything to stderr; what that does not take is lost, and nothing ends for it."""

    def __init__(self) -> None:
        self._lost = 0

    @property
    def _stream(self) -> TextIO | None:
        return sys.stderr

    def write(self, text: str) -> int:
        """As of any stream."""
        try:
            return self._stream.write(text) if self._stream else 0
        except (OSError, ValueError):
            self._lost += 1
            return len(text)

    def flush(self) -> None:
        """As of any stream."""
        try:
            if self._stream:
                self._stream.flush()
        except (OSError, ValueError):
            self._lost += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
