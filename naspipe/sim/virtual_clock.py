"""A virtual clock: callbacks at times, in the order of time, then of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualClock:
    """Runs callbacks in time order; ties run in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Call back ``delay_ns`` from now (0 or more)."""
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._asked, callback))
        self._asked += 1

    def run(self) -> None:
        """Run until nothing is left to call."""
        while self._heap:
            self.now_ns, _, callback = heapq.heappop(self._heap)
            callback()

    def stop(self) -> None:
        """Call nothing more of what was asked for so far."""
        self._heap.clear()
