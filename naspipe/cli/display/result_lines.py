"""What commands say on stdout and stderr, where either may be closed, full or without a reader."""

from __future__ import annotations

import errno
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from naspipe.config.errors import reason
from naspipe.trace.storage.writing import STORAGE, cannot_write


def tell(line: str) -> None:
    """Print a result that is on disk already: where stdout takes it not, a note says it."""
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        silence(sys.stdout)
        complain(f"stdout cannot be written ({error}); the work is done: {line}")


def complain(text: str) -> None:
    """One line on stderr, with the prefix that all of them have; or nothing, where that is gone."""
    try:
        print(f"naspipe: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def systems_line(error: OSError | MemoryError | ImportError) -> str:
    """One line on what the system refused.

    Raises:
        OSError, ImportError: the error itself, where it is something else.
    """
    if isinstance(error, OSError) and error.errno in STORAGE:
        return str(cannot_write(Path(error.filename or "stdout"), error))
    is_short = isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = limit != resource.RLIM_INFINITY
    if not is_short and not (is_limited and isinstance(error, ImportError)):
        raise error
    bound = f", with a limit of {limit >> 10:,} KiB (ulimit -v)" if is_limited else ""
    return f"out of memory: {reason(error)}{bound}; free memory or raise the limit"


def silence(stream: TextIO | None) -> None:
    """Keep the interpreter from failing as it flushes a stream at its exit."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
