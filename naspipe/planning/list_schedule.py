"""A list schedule: each stage takes, of the accesses that are ready, the one of the least key.

It carries streams out forwards, or backwards from the end: then an access is ready when all that
wait for it are through.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

Key = int | tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Way:
    """A subnet's accesses in the order of its chain: forwards, then backwards, each by its place.

    A backward has the layer's WRITE with it.
    """

    stream: int
    number: int
    """In its stream."""
    stages: Sequence[int]
    durations: list[int]
    later: dict[int, list[tuple[Way, int]]] = field(default_factory=dict)
    """By place, the accesses of other ways that come behind it."""
    earlier: dict[int, list[tuple[Way, int]]] = field(default_factory=dict)
    """By place, those that come before it."""
    keys: Sequence[Key] = ()
    """By place, in the schedule that comes next."""
    ends: list[int] = field(default_factory=list)
    """By place, when an access was through in the last schedule, counted from where it began."""

    def follow(self, place: int, other: Way, its: int) -> None:
        """The access at a place comes behind another way's."""
        self.earlier.setdefault(place, []).append((other, its))
        other.later.setdefault(its, []).append((self, place))


class ListSchedule:
    """Carries streams out once.

    Args:
        streams: the ways of each in sequence order, whole steps, with their keys.
        passes: of a step.
        window: steps of a stream that are under way at most.
        is_backwards: from the last step to the first, each way from its last place to its first.
    """

    def __init__(
        self, streams: Sequence[Sequence[Way]], passes: int, window: int, is_backwards: bool
    ) -> None:
        self._is_backwards = is_backwards
        self._streams = [own[::-1] if is_backwards else own for own in streams]
        self._passes, self._window = passes, window
        self._let_in = [0] * len(streams)
        """Ways of each stream that may run, or did."""
        self._oldest = [0] * len(streams)
        self._left: dict[Way, int] = {}
        """Accesses that are before each of those."""
        self._unmet: dict[Way, int] = {}
        """How many accesses of others a way's next one waits for."""
        self._now = 0
        self._running: list[tuple[int, int, Way]] = []
        """A heap: when a stage is through with an access."""
        self._ready: dict[int, list[tuple[Key, int, int, Way]]] = {}
        """By stage, a heap."""
        self._busy: set[int] = set()
        self._news: set[int] = set()
        """Stages that may have something to begin with."""

    def run(self) -> None:
        """To the end; every way then has its ends."""
        for stream in range(len(self._streams)):
            self._open(stream)
        self._begin()
        while self._running:
            self._now = self._running[0][0]
            while self._running and self._running[0][0] == self._now:
                _, stage, way = heapq.heappop(self._running)
                self._busy.remove(stage)
                self._news.add(stage)
                self._end(way)
            self._begin()

    def _open(self, stream: int) -> None:
        """Let in as many steps as the window holds, from the oldest on that is not through."""
        own, passes, oldest = self._streams[stream], self._passes, self._oldest[stream]
        while True:
            while oldest < self._let_in[stream] and not self._left[own[oldest]]:
                oldest += 1
            self._oldest[stream] = oldest
            begin = self._let_in[stream]
            end = self._let_in[stream] = min(len(own), (oldest // passes + self._window) * passes)
            if end <= begin:
                return
            for way in own[begin:end]:
                self._left[way] = len(way.stages)
                way.ends = [0] * len(way.stages)
                if way.stages:
                    self._offer(way)

    def _next(self, way: Way, left: int) -> int:
        """The place of the next access of a way that has so many before it."""
        return left - 1 if self._is_backwards else len(way.stages) - left

    def _offer(self, way: Way) -> None:
        """Its next access is ready, unless it waits for others."""
        place = self._next(way, self._left[way])
        waits = (way.later if self._is_backwards else way.earlier).get(place)
        if waits and (unmet := sum(not self._is_through(*each) for each in waits)):
            self._unmet[way] = unmet
        else:
            self._queue(way, place)

    def _is_through(self, way: Way, place: int) -> bool:
        left = self._left.get(way)
        if left is None:
            return False
        return left <= place if self._is_backwards else len(way.stages) - left > place

    def _queue(self, way: Way, place: int) -> None:
        stage = way.stages[place]
        entry = (way.keys[place], way.number, way.stream, way)
        heapq.heappush(self._ready.setdefault(stage, []), entry)
        self._news.add(stage)

    def _end(self, way: Way) -> None:
        """An access is through."""
        left = self._left[way]
        place = self._next(way, left)
        self._left[way] = left - 1
        way.ends[place] = self._now
        for other, its in (way.earlier if self._is_backwards else way.later).get(place, ()):
            if other in self._unmet and its == self._next(other, self._left[other]):
                self._unmet[other] -= 1
                if not self._unmet[other]:
                    del self._unmet[other]
                    self._queue(other, its)
        if left > 1:
            self._offer(way)
        else:
            self._open(way.stream)

    def _begin(self) -> None:
        """Every stage that is free takes what is ready, if anything is."""
        for stage in sorted(self._news):
            ready = self._ready.get(stage)
            if ready and stage not in self._busy:
                way = heapq.heappop(ready)[3]
                self._busy.add(stage)
                place = self._next(way, self._left[way])
                heapq.heappush(self._running, (self._now + way.durations[place], stage, way))
        self._news.clear()
