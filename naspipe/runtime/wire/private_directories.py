"""Private directories of sockets, below the temporary directory; those of the dead are swept.

Each holds a file that its maker, and whatever is forked from it, keeps locked. The kernel lets go
of the lock with the last of them, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKETS_PREFIX = "naspipe-"
"""Of every such directory."""

_NEW_PREFIX = ".np-"
_OWNED = ".owned"


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory for this process and what it forks; it is gone when the block ends."""
    sweep()
    new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
    # It takes its name when it is locked: nobody else sees it before.
    descriptor = os.open(new / _OWNED, os.O_RDWR | os.O_CREAT, 0o600)
    path = new.with_name(f"{SOCKETS_PREFIX}{new.name.removeprefix(_NEW_PREFIX)}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
        yield path
    finally:
        os.close(descriptor)
        for each in (new, path):
            shutil.rmtree(each, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove the directories of this user that nobody holds any more; returns them."""
    swept = []
    for path in Path(tempfile.gettempdir()).glob(f"{SOCKETS_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and _is_left(path / _OWNED):
                shutil.rmtree(path)
                swept.append(path)
    return swept


def _is_left(owned: Path) -> bool:
    descriptor = os.open(owned, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
