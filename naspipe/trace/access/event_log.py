"""A controller's recorded input: every event it was given, in order, to be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgpack

from naspipe.config.errors import LogError
from naspipe.core.events import Event
from naspipe.trace.access.event_codec import decode_event, encode_event
from naspipe.trace.storage.framing import FramedWriter, read_frames

_MAGIC = b"NPEVENTS"
_VERSION = 2
_BUFFERED = 512


class EventLogWriter:
    """Appends one stage's events; a context manager that flushes on its way out."""

    def __init__(self, path: Path) -> None:
        self._frames = FramedWriter(path, _MAGIC, _VERSION)
        self._waiting = 0

    def append(self, event: Event) -> None:
        """Add one event; the file sees it at the next flush."""
        self._frames.append(msgpack.packb(encode_event(event)))
        self._waiting += 1
        if self._waiting >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Hand every event to the operating system."""
        self._frames.flush()
        self._waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._frames.close()


def read_events(path: Path) -> Iterator[Event]:
    """Every event of one stage, in order; a torn tail is dropped.

    Raises:
        LogError: when the file is damaged before its tail, is of another schema, or holds
            something else.
    """
    for number, payload in enumerate(read_frames(path, _MAGIC, _VERSION)):
        try:
            message = msgpack.unpackb(payload)
        except (ValueError, msgpack.UnpackException) as error:
            raise LogError(f"{path}, record {number}: {error}") from error
        yield decode_event(message)
