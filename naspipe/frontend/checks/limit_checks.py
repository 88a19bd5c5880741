"""Limits of the system that a run would meet half-way: open files, address space."""

from __future__ import annotations

import resource
from pathlib import Path

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError

_FILES, _FILES_OF_STAGE, _FILES_OF_STREAM = 40, 6, 6
_ROOM_BYTES = 512 << 20
_RAISED = 1024
"""The usual limit of open files, which a lower one is raised to."""


def check_limits(execution: Execution, streams: int) -> None:
    """A run must have the descriptors and the address space that it will need.

    A soft limit of open files is raised as far as the system allows.

    Raises:
        ConfigError: in one line.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_OF_STAGE * execution.workers + _FILES_OF_STREAM * streams
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"open files: expected a limit of {needed} or more for {execution.workers} stages, "
                f"found {hard}; raise it, as with ulimit -n 1024"
            )
        most = max(needed, _RAISED)
        raised = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    found = _mapped_bytes()
    if limit < found + _ROOM_BYTES:
        raise ConfigError(
            f"address space: expected a limit of {(found + _ROOM_BYTES) >> 10:,} KiB or more "
            f"({found >> 10:,} KiB are mapped before anything is trained), found {limit >> 10:,} "
            f"KiB; raise it, as with ulimit -v unlimited"
        )


def _mapped_bytes() -> int:
    """Address space of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0
