"""What every target of the fuzzing is made of, and how its inputs are damaged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

SEPARATOR = b"\xfe\xfe"


class Target(NamedTuple):
    """A reader, the errors it may raise, and inputs to begin with."""

    read: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[Path], list[bytes]]


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def pieces(data: bytes) -> list[bytes]:
    """One part, or as many as its separators make."""
    return data.split(SEPARATOR)


def texts(*found: str) -> Callable[[Path], list[bytes]]:
    return lambda place: [text.encode() for text in found]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A few bits, bytes or numbers that were not so."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        what = draw.choice(("flip", "cut", "insert", "number"))
        if what == "flip" and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif what == "cut":
            del changed[place : place + draw.randint(1, 8)]
        else:
            extra = b"\xff" * 8 if what == "number" else draw.randbytes(draw.randint(1, 6))
            changed[place:place] = extra
    return bytes(changed)


ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 63, 1 << 31, 1 << 62, (1 << 64) - 1, -(1 << 63), 0.0, 1.5, 4.0,
    math.nan, math.inf, "", "a", "\0", "0" * 500, b"", b"\0" * 40, [], {}, [[]], {"a": 1}, {1: 2},
    {b"a": 1, "a": 2}, [1, 2], "float32", "int64", "label", "ask", msgpack.Timestamp(1, 2),
    msgpack.ExtType(5, b"x"),
)  # fmt: skip
"""Values of other kinds and sizes than anybody expects."""


def reshaped(data: bytes, draw: random.Random) -> bytes:
    """The same message with a value of another kind somewhere in it; bytes where it is none."""
    parts = pieces(data)
    place = draw.randrange(len(parts))
    try:
        value = msgpack.unpackb(parts[place], strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return damaged(data, draw)
    for _ in range(draw.randint(1, 2)):
        value = _other(value, draw)
    parts[place] = msgpack.packb(value)
    return SEPARATOR.join(parts)


def _other(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list) and value and draw.random() < 0.9:
        found, place = list(value), draw.randrange(len(value))
        match draw.choice(("in", "in", "in", "in", "out", "twice")):
            case "in":
                found[place] = _other(found[place], draw)
            case "out":
                del found[place]
            case _:
                found.insert(place, found[place])
        return found
    if isinstance(value, dict) and value and draw.random() < 0.9:
        chosen = draw.choice(sorted(value, key=repr))
        return {**value, chosen: _other(value[chosen], draw)}
    return draw.choice(ODD)
