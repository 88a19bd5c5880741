"""Room on the disk that is kept while a run goes on, so that how it ended can always be written."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naspipe.trace.results.run_directory import RunDirectory
from naspipe.trace.storage.writing import SPACE, writing

RESERVED = ".reserved"
"""In a run directory whose run goes on."""

_MORE_BYTES = 8192
"""Room for a failure's message and for what was measured, beside twice the manifest."""


def reserve(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Keep room for a manifest of a life that begins.

    Raises:
        StorageError: when there is none.
    """
    path = directory.path / RESERVED
    size = 2 * len(json.dumps(manifest, default=str)) + _MORE_BYTES
    with writing(path, size):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in SPACE:
                path.unlink()
                raise
            if error.errno not in (errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        finally:
            os.close(descriptor)


def write_last(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a life that ends now: into the room that was kept, if need be.

    Raises:
        OSError: when it cannot be written all the same.
    """
    if isinstance(manifest.get("provenance"), Mapping):
        manifest = {**manifest, "provenance": {**manifest["provenance"], "ended": time.time()}}
    kept: Path = directory.path / RESERVED
    try:
        directory.write_manifest(manifest)
    except OSError as error:
        if error.errno not in SPACE:
            raise
        kept.unlink(missing_ok=True)
        directory.write_manifest(manifest)
    kept.unlink(missing_ok=True)
