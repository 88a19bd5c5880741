"""Files that appear whole or not at all, and JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from naspipe.trace.storage.writing import note_room


@contextmanager
def atomic_file(path: Path, needed_bytes: int = 0) -> Iterator[BinaryIO]:
    """A file to write that takes the name ``path`` when whole and on disk, or leaves no trace.

    Args:
        path: of the file.
        needed_bytes: how much is to be written, where that is known.

    Raises:
        OSError: when it cannot be written; its ``filename`` is the path, and it knows the need.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
            note_room(error, path, needed_bytes)
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; a NaN or infinity becomes the string ``nan``, ``inf``."""
    text = json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False)
    data = text.encode() + b"\n"
    with atomic_file(path, len(data)) as file:
        file.write(data)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def sync_directory(path: Path) -> None:
    """Put the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
