"""Two hosts on one machine: network namespaces with addresses of their own and a link between."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

_NEW_NETWORK = 0x40000000


def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (apt-get install iproute2)"
    name = f"np{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class TwoHosts:
    """Hosts 0 and 1; a context manager that takes everything down again."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self) -> None:
        self.names = tuple(f"np{os.getpid()}{letter}" for letter in "ab")
        self._links = ("npva", "npvb")

    def __enter__(self) -> Self:
        for name in self.names:
            _ip("netns", "add", name)
        (a, b), (left, right) = self.names, self._links
        _ip("link", "add", left, "netns", a, "type", "veth", "peer", "name", right, "netns", b)
        for name, link, address in zip(self.names, self._links, self.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", link, "up")
        return self

    def __exit__(self, *exception: object) -> None:
        for name in self.names:
            _ip("netns", "del", name)

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.names[1], "link", "set", self._links[1], "down")

    def heal(self) -> None:
        """Plug it in again."""
        _ip("-n", self.names[1], "link", "set", self._links[1], "up")

    def enter(self, host: int) -> None:
        """Move this process (one that was just forked) to a host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.names[host]).open("rb") as namespace:
            if libc.setns(namespace.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
