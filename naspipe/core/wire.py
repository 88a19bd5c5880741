"""Messages as nested lists of plain values, and back: for logs and replays, nothing executable."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from naspipe.core.errors import LogError
from naspipe.core.events import (
    BlockFinished,
    Event,
    InputArrived,
    Priorities,
    SubnetAdmitted,
    WriteFinished,
)
from naspipe.core.ids import LayerId
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.core.task import Task, TaskKind

_TUPLES = {kind.__name__: kind for kind in (LayerId, Partition, Priorities, Subnet, Task)}
_EVENTS = {
    kind.__name__: kind for kind in (SubnetAdmitted, InputArrived, BlockFinished, WriteFinished)
}


def encode_event(event: Event) -> list[Any]:
    """The event as ``[name, field, ...]``; nested tuples become lists with their own names."""
    return [type(event).__name__, *(_encode(getattr(event, f.name)) for f in fields(event))]


def decode_event(message: Any) -> Event:
    """Rebuild an event.

    Raises:
        LogError: when the message is not one that :func:`encode_event` makes.
    """
    try:
        name, *values = message
        return _EVENTS[name](*map(_decode, values))
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"expected a controller event, found {message!r:.200}") from error


def _encode(value: Any) -> Any:
    if isinstance(value, TaskKind):
        return ["TaskKind", value.value]
    if isinstance(value, tuple):
        name = type(value).__name__ if type(value) is not tuple else "tuple"
        return [name, *map(_encode, value)]
    return value


def _decode(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    name, *items = value
    if name == "TaskKind":
        return TaskKind(items[0])
    if name == "tuple":
        return tuple(map(_decode, items))
    return _TUPLES[name](*map(_decode, items))
