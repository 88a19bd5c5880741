"""Host memory that is freed in a run stays with the process: the next step asks for it again.

glibc gives large pieces back to the system as they are freed. The next step then gets new pages,
which the system clears one by one: a sixth of the time of a small network was measured so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for its settings; see ``man mallopt``."""
_LARGEST = 32 << 20
"""Bytes; from here on a piece is the system's own again. glibc takes no more."""
_KEPT = (1 << 31) - 1
_USERS = (
    "GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip


@contextmanager
def kept_heap() -> Iterator[None]:
    """Keep what is freed inside, and give it back afterwards.

    The thresholds stay: glibc cannot go back to those that it adapts itself. Where a user has set
    any, or the library is another one, nothing is done.
    """
    library = ctypes.CDLL(None)
    set_option = getattr(library, "mallopt", None)
    give_back = getattr(library, "malloc_trim", None)
    if set_option is None or give_back is None or any(name in os.environ for name in _USERS):
        yield
        return
    set_option(_MMAP_THRESHOLD, _LARGEST)
    set_option(_TRIM_THRESHOLD, _KEPT)
    try:
        yield
    finally:
        give_back(0)
