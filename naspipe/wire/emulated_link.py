"""Emulate a slower network on one machine by delaying messages.

Each worker has a link to every other worker. A message takes its size divided by the bandwidth,
starting after the messages that are still on the link, plus the latency. Results do not depend on
the delays.
"""

from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import zmq

from naspipe.config.ids import WorkerId
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.transport import ZmqTransport

_STAMP = struct.Struct("!qq")
"""Sender of a message, and its time on the machine's monotonic clock."""


class Link(NamedTuple):
    """The properties of the emulated network."""

    bandwidth: float
    """Bandwidth in bytes per second; 0 for no limit."""
    latency: float
    """Latency in seconds."""

    @property
    def is_emulated(self) -> bool:
        return bool(self.bandwidth or self.latency)


class Arrivals:
    """Messages in transit over one worker's incoming links."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_ns: dict[int, int] = {}
        """Time at which each sender's link has transmitted all messages so far."""
        self._due: list[tuple[int, int, Sequence[Any]]] = []
        self._order = count()

    def add(self, message: Sequence[Any], sender: int, sent_ns: int, nbytes: int) -> None:
        start_ns = max(sent_ns, self._free_ns.get(sender, 0))
        carried_ns = int(1e9 * nbytes / self._link.bandwidth) if self._link.bandwidth else 0
        self._free_ns[sender] = start_ns + carried_ns
        due_ns = start_ns + carried_ns + int(1e9 * self._link.latency)
        heapq.heappush(self._due, (due_ns, next(self._order), message))

    def take(self, now_ns: int) -> Sequence[Any] | None:
        """Return the next message that has arrived, or None."""
        return heapq.heappop(self._due)[2] if self._due and self._due[0][0] <= now_ns else None

    def until_next(self, now_ns: int) -> float:
        """Return the seconds until the next arrival; infinite if no message is in transit."""
        return max(0, self._due[0][0] - now_ns) / 1e9 if self._due else float("inf")


class LinkedTransport(ZmqTransport):
    """ZeroMQ sockets with emulated links between workers.

    Args:
        link: the properties of every link.
        worker: the ID of this worker.
        endpoints: the addresses of all workers, which are on this machine.
        more: further arguments of :class:`ZmqTransport`.
    """

    def __init__(self, link: Link, worker: WorkerId, endpoints: Endpoints, *more: Any) -> None:
        super().__init__(worker, replace(endpoints, rings=None), *more)
        self._arrivals = Arrivals(link)

    def _send(self, worker: WorkerId, frames: Sequence[Any]) -> None:
        stamp = _STAMP.pack(self._worker, time.monotonic_ns())
        super()._send(worker, [*frames, stamp])

    def _next(self, timeout_seconds: float) -> Sequence[zmq.Frame] | None:
        """Return the next message that has arrived; those of the launcher are not delayed."""
        wait_seconds = 0.0
        while True:
            while frames := super()._next(wait_seconds):
                wait_seconds = 0.0
                if len(frames) == 1:
                    return frames
                *message, stamp = frames
                sender, sent_ns = _STAMP.unpack(stamp.bytes)
                self._arrivals.add(message, sender, sent_ns, sum(map(len, message)))
            now_ns = time.monotonic_ns()
            arrived = self._arrivals.take(now_ns)
            if arrived is not None or not timeout_seconds:
                return arrived
            wait_seconds = min(timeout_seconds, self._arrivals.until_next(now_ns))
            timeout_seconds = 0.0  # wait only once, because the caller has other work to check
