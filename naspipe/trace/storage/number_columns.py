"""Whole numbers in columns of bytes: as few bytes each as the largest needs, then deflated.

Neighbours in a log are alike. So a caller hands over differences, and here their bytes are laid
out plane by plane: all lowest bytes, then all next ones. High planes are nearly empty then.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_WIDTHS = (1, 2, 4, 8)
_FIRST_SIGN = np.int64(63)


def pack_numbers(numbers: Integers) -> int | list[Any]:
    """Plain values for msgpack: one number where all are equal, else width and deflated planes."""
    if len(numbers) and (numbers == numbers[0]).all():
        return int(numbers[0])
    unsigned = ((numbers << 1) ^ (numbers >> _FIRST_SIGN)).view(np.uint64)
    largest = int(unsigned.max(initial=0))
    width = next(each for each in _WIDTHS if largest < 1 << 8 * each)
    planes = unsigned.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return [width, zlib.compress(planes.tobytes(), 6)]


def unpack_numbers(packed: Any, count: int) -> Integers:
    """What :func:`pack_numbers` made of so many numbers.

    Raises:
        ValueError: when it is not that.
    """
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
    """Exactly so many bytes.

    Raises:
        ValueError: when it holds more or fewer, or no deflated bytes.
    """
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
