"""The event log: one stage's controller events as nested lists of plain values, for replays.

The field annotations of an event alone determine which values it may have. Reading a log executes
no code from it.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

import msgpack

from naspipe.config.errors import LogError
from naspipe.engine.events import Event, TaskKind
from naspipe.store.frames import FramedWriter, read_frames

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}


def encode_event(event: Event) -> list[Any]:
    """Encode an event as ``[name, field, ...]``; nested tuples become lists with a name first."""
    return [type(event).__name__, *(_encode(getattr(event, f.name)) for f in fields(event))]


def decode_event(message: Any) -> Event:
    """Invert :func:`encode_event`; LogError for anything that it does not produce."""
    try:
        name, *values = message
        event: Event = _make(_EVENTS[name], values)
    except (KeyError, TypeError, ValueError) as error:
        # reprlib: the message may be long, or nested too deeply for repr
        found = f"{reprlib.repr(message):.200}"
        raise LogError(f"expected a controller event, found {found}") from error
    return event


def _encode(value: Any) -> Any:
    if isinstance(value, TaskKind):
        return [TaskKind.__name__, value.value]
    if isinstance(value, tuple):
        return [type(value).__name__, *map(_encode, value)]
    return value


def _make(kind: Any, values: list[Any]) -> Any:
    """Make an event or a named tuple from field values."""
    kinds = _field_kinds(kind)
    if len(values) != len(kinds):
        raise TypeError(f"{kind.__name__} has {len(kinds)} fields, found {len(values)}")
    return kind(*map(_decode, kinds, values))


@functools.cache
def _field_kinds(kind: Any) -> tuple[Any, ...]:
    return tuple(_plain(hint) for hint in get_type_hints(kind).values())


def _plain(hint: Any) -> Any:
    """Replace a NewType of :mod:`naspipe.config.ids` by its plain type."""
    return getattr(hint, "__supertype__", hint)


def _decode(kind: Any, value: Any) -> Any:
    if kind in (int, str, bool):
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}")
        return value
    if type(None) in (choices := get_args(kind)):  # X | None
        return None if value is None else _decode(choices[0], value)
    name, *items = value
    if name != (get_origin(kind) or kind).__name__:
        raise TypeError(f"expected {kind}")
    if kind is TaskKind:
        (letter,) = items
        return TaskKind(letter)
    if get_origin(kind) is tuple:  # tuple[X, ...]
        return tuple(_decode(_plain(choices[0]), item) for item in items)
    return _make(kind, items)


_MAGIC = b"NPEVENTS"
_VERSION = 2
_BUFFERED = 512


class EventLogWriter:
    """Appends one stage's events; a context manager that flushes on exit."""

    def __init__(self, path: Path) -> None:
        self._frames = FramedWriter(path, _MAGIC, _VERSION)
        self._waiting = 0

    def append(self, event: Event) -> None:
        self._frames.append(msgpack.packb(encode_event(event)))
        self._waiting += 1
        if self._waiting >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write all buffered events to the file, without an fsync."""
        self._frames.flush()
        self._waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._frames.close()


def read_events(path: Path) -> Iterator[Event]:
    """Yield every event of one stage in order; a torn tail is dropped.

    Raises:
        LogError: if the file is damaged before its tail, or of another schema or kind.
    """
    for number, payload in enumerate(read_frames(path, _MAGIC, _VERSION)):
        try:
            message = msgpack.unpackb(payload)
        except (ValueError, msgpack.UnpackException) as error:
            raise LogError(f"{path}, record {number}: {error}") from error
        yield decode_event(message)
