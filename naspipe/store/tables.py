"""Packed columns of whole numbers, and tables of rows that are packed by column.

A column uses as few bytes per number as its largest number needs, and is deflated. Because adjacent
numbers in a log are similar, callers pass differences. Their bytes are stored in planes: all lowest
bytes, then all second-lowest ones, so that the high planes are nearly empty.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from naspipe.config.errors import LogError

Integers = NDArray[np.int64]

_WIDTHS = (1, 2, 4, 8)
_FIRST_SIGN = np.int64(63)


def pack_numbers(numbers: Integers) -> int | list[Any]:
    """Pack numbers for msgpack: one number if all are equal, else width and deflated planes."""
    if len(numbers) and (numbers == numbers[0]).all():
        return int(numbers[0])
    unsigned = ((numbers << 1) ^ (numbers >> _FIRST_SIGN)).view(np.uint64)
    largest = int(unsigned.max(initial=0))
    width = next(each for each in _WIDTHS if largest < 1 << 8 * each)
    planes = unsigned.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return [width, zlib.compress(planes.tobytes(), 6)]


def unpack_numbers(packed: Any, count: int) -> Integers:
    """Invert :func:`pack_numbers` for ``count`` numbers; ValueError for anything else."""
    if type(packed) is int:
        if not -(1 << 63) <= packed < 1 << 63:
            raise ValueError("a number of more than 64 bits")
        return np.full(count, packed, np.int64)
    if type(packed) is not list or len(packed) != 2 or packed[0] not in _WIDTHS:
        raise ValueError("expected a column of numbers")
    width, deflated = packed
    planes = np.frombuffer(inflate(deflated, width * count), np.uint8)
    unsigned = np.ascontiguousarray(planes.reshape(width, count).T).view(f"<u{width}")
    found = unsigned.reshape(count).astype(np.uint64)
    return (found >> np.uint64(1)).view(np.int64) ^ -(found & np.uint64(1)).view(np.int64)


def inflate(deflated: Any, size: int) -> bytes:
    """Decompress exactly ``size`` bytes; ValueError for any other length or damaged data."""
    if type(deflated) is not bytes:
        raise ValueError("expected deflated bytes")
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(deflated, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not stream.eof or stream.unused_data:
        raise ValueError(f"expected {size} deflated bytes")
    return found


MOST_ROWS = 1 << 16
_MOST_BYTES = 1 << 24
_HEX_DIGITS = 16
_HEX_LETTERS = frozenset("0123456789abcdef")
_MOST_VALUES = 1 << 24

Row = Mapping[str, Any]


def encode_table(rows: Sequence[Row]) -> bytes:
    """Pack rows, whose fields may differ, as msgpack."""
    layouts = list(dict.fromkeys(tuple(row) for row in rows))
    places = {layout: place for place, layout in enumerate(layouts)}
    names = dict.fromkeys(name for layout in layouts for name in layout)
    columns = [[name, *_pack([row[name] for row in rows if name in row])] for name in names]
    which = np.array([places[tuple(row)] for row in rows], np.int64)
    return bytes(msgpack.packb([len(rows), layouts, pack_numbers(which), columns]))


def decode_table(packed: bytes) -> list[dict[str, Any]]:
    """Invert :func:`encode_table`; LogError for anything else."""
    try:
        count, layouts, which, columns = msgpack.unpackb(packed)
        if type(count) is not int or not 0 <= count <= MOST_ROWS:
            raise ValueError
        if count * len(columns) > _MOST_VALUES:
            raise ValueError
        if not all(type(name) is str for layout in layouts for name in layout):
            raise TypeError
        places = unpack_numbers(which, count).tolist()
        if count and not 0 <= min(places) <= max(places) < len(layouts):
            raise ValueError
        of_rows = [layouts[place] for place in places]
        values = {}
        for name, kind, data in columns:
            own = sum(name in layout for layout in of_rows)
            values[name] = iter(_unpack(kind, data, own))
        rows = [{name: next(values[name]) for name in layout} for layout in of_rows]
    except (
        ValueError, TypeError, KeyError, OverflowError, RuntimeError, StopIteration,
        msgpack.exceptions.UnpackException,
    ) as error:  # fmt: skip
        raise LogError(f"expected a table of rows, found {packed!r:.200}") from error
    return rows


def _pack(values: list[Any]) -> tuple[str, Any]:
    kinds = {type(value) for value in values}
    if kinds == {int} and all(-(1 << 62) < value < 1 << 62 for value in values):
        return "int", pack_numbers(_steps(np.array(values, np.int64)))
    if kinds == {float}:
        wide = np.array(values, np.float64)
        with np.errstate(all="ignore"):
            narrow = wide.astype(np.float32)
        if narrow.astype(np.float64).tobytes() == wide.tobytes():
            return "f4", pack_numbers(_steps(narrow.view(np.int32).astype(np.int64)))
        return "f8", pack_numbers(_steps(wide.view(np.int64)))
    digits = len(values[0]) if kinds == {str} else 0
    if 0 < digits <= _HEX_DIGITS and all(
        len(value) == digits and _HEX_LETTERS.issuperset(value) for value in values
    ):
        numbers = np.array([int(value, 16) for value in values], np.uint64).view(np.int64)
        return f"hex{digits}", pack_numbers(numbers)
    packed = msgpack.packb(values)
    return "any", [len(packed), zlib.compress(packed, 6)]


def _unpack(kind: Any, data: Any, count: int) -> list[Any]:
    if type(kind) is not str:
        raise TypeError
    if kind == "any":
        size, deflated = data
        if type(size) is not int or not 0 <= size <= _MOST_BYTES:
            raise ValueError
        found = msgpack.unpackb(inflate(deflated, size))
        if type(found) is not list or len(found) != count:
            raise ValueError
        return found
    numbers = unpack_numbers(data, count)
    if kind == "int":
        return list(np.cumsum(numbers).tolist())
    if kind == "f4":
        narrow = np.cumsum(numbers).astype(np.int32).view(np.float32)
        with np.errstate(all="ignore"):
            return list(narrow.astype(np.float64).tolist())
    if kind == "f8":
        return list(np.cumsum(numbers).view(np.float64).tolist())
    digits = int(kind.removeprefix("hex"))
    if not 0 < digits <= _HEX_DIGITS:
        raise ValueError
    return [f"{number:0{digits}x}" for number in numbers.view(np.uint64).tolist()]


def _steps(numbers: Integers) -> Integers:
    return np.diff(numbers, prepend=np.int64(0))
