"""A strict reader of IDX files, the format of the MNIST family."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import DataError

_UNSIGNED_BYTE = 0x08
_MAX_BYTES = 1 << 30

Bytes = npt.NDArray[np.uint8]


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Return the array of unsigned bytes in a gzipped IDX file of ``dimensions`` dimensions.

    The file must be exactly what its header says, and no larger than 1 GiB unpacked.
    """
    header_bytes = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(header_bytes)
            _check_header(path, header, dimensions)
            shape = tuple(int(size) for size in np.frombuffer(header[4:], ">u4"))
            expected = math.prod(shape)
            if expected > _MAX_BYTES:
                raise DataError(f"{path}: shape {shape} is more than {_MAX_BYTES} bytes")
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a gzipped IDX file ({error})") from None
    if len(content) != expected:
        found = "more" if len(content) > expected else str(len(content))
        raise DataError(f"{path}: expected {expected} bytes for shape {shape}, found {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _check_header(path: Path, header: bytes, dimensions: int) -> None:
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(header) < 4 + 4 * dimensions or header[:4] != expected:
        raise DataError(
            f"{path}: expected an IDX header {expected.hex()} and {dimensions} sizes, found "
            f"{header[:4].hex() or 'nothing'}"
        )
