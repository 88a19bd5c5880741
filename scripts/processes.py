"""What the processes of a run take, as Linux tells it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Taken(NamedTuple):
    """One process at one moment."""

    rss_bytes: int
    """Resident memory, pages shared with other processes included."""
    pss_bytes: int
    """The same with each shared page divided by the number of its users."""
    threads: int
    descriptors: int
    """Open files, sockets and the like."""


def children(pid: int) -> list[int]:
    """The processes that any thread of a process started and that are alive, oldest first."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for path in found for child in path.read_text().split())


def allocator(pid: int) -> str | None:
    """Whose malloc a process uses, a preloaded library's or "libc"; None when it has ended."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return None
    if not maps:  # ended, and not waited for yet
        return None
    preloaded = re.search(r"/(lib(?:je|tc|mi)malloc[^/\s]*)$", maps, re.MULTILINE)
    return preloaded[1] if preloaded else "libc"


def taken(pid: int) -> Taken | None:
    """What a process takes now; None when it has ended."""
    root = Path(f"/proc/{pid}")
    try:
        memory = dict(re.findall(r"(\w+): +(\d+) kB", (root / "smaps_rollup").read_text()))
        threads = re.search(r"Threads:\s+(\d+)", (root / "status").read_text())
        descriptors = sum(1 for _ in (root / "fd").iterdir())
    except OSError:
        return None
    if threads is None or "Rss" not in memory:
        return None
    kilobytes = (int(memory[name]) * 1024 for name in ("Rss", "Pss"))
    return Taken(*kilobytes, int(threads[1]), descriptors)
