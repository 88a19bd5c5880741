"""A list schedule: each stage takes, of the accesses that are ready, the first by a given order.

It carries streams out forwards, or backwards from the end: then an access is ready when all that
wait for it are through. It is carried out many times, so accesses are numbers, and what is known
of them stands in lists.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Way:
    """A subnet's accesses in the order of its chain: forwards, then backwards, each by its place.

    A backward has the layer's WRITE with it, unless that is an access of its own: those have the
    places behind the chain.
    """

    stream: int
    number: int
    """In its stream."""
    stages: Sequence[int]
    """Of the chain."""
    durations: list[int]
    written: dict[int, int] = field(default_factory=dict)
    """By the place of a backward, that of its WRITE, where it is an access of its own."""
    earlier: list[tuple[int, Way, int]] = field(default_factory=list)
    """A place, and the access of another way that comes before it."""
    first: int = 0
    """The number of its first access; the others have the next ones."""

    def write(self, place: int, takes: int) -> None:
        """The WRITE behind the backward at a place is an access of its own."""
        self.written[place] = len(self.durations)
        self.durations.append(takes)

    @property
    def numbers(self) -> range:
        """Of all its accesses."""
        return range(self.first, self.first + len(self.durations))

    def ends(self) -> tuple[list[int], list[int]]:
        """The numbers of the accesses that nothing of it comes before, and behind."""
        last = len(self.stages) - 1
        if last < 0:
            return [], []
        behind = [*self.written.values()] + [last] * (last not in self.written)
        return [self.first], [self.first + place for place in behind]

    def follow(self, place: int, other: Way, its: int) -> None:
        """The access at a place comes behind another way's."""
        self.earlier.append((place, other, its))


class ListSchedule:
    """Streams that can be carried out again and again, each time in another order.

    Args:
        streams: the ways of each in sequence order, whole steps.
        passes: of a step.
        window: steps of a stream that are under way at most.
    """

    def __init__(self, streams: Sequence[Sequence[Way]], passes: int, window: int) -> None:
        self._streams = streams
        self._passes, self._window = passes, window
        self.stages: list[int] = []
        """Of each access; those of a way have one number behind the other."""
        self._durations: list[int] = []
        for way in (way for own in streams for way in own):
            way.first = len(self.stages)
            self.stages += [*way.stages, *(way.stages[place] for place in way.written)]
            self._durations += way.durations
        count = len(self.stages)
        before: list[list[int]] = [[] for _ in range(count)]
        behind: list[list[int]] = [[] for _ in range(count)]
        for one, other in self._pairs():
            behind[one].append(other)
            before[other].append(one)
        self._before, self._behind = before, behind

    def _pairs(self) -> Iterable[tuple[int, int]]:
        """Accesses that come one before the other."""
        for own in self._streams:
            for way in own:
                end = way.first + len(way.stages)
                yield from zip(range(way.first, end - 1), range(way.first + 1, end), strict=True)
                for place, its in way.written.items():
                    yield way.first + place, way.first + its
                for place, other, its in way.earlier:
                    yield other.first + its, way.first + place

    def run(self, order: Sequence[int], is_backwards: bool) -> list[int]:
        """When each access was through, counted from where it began.

        Args:
            order: all accesses; of those that are ready, a stage takes the first.
            is_backwards: from the last step to the first, each way from its last access on.
        """
        stages, durations = self.stages, self._durations
        waiters = self._before if is_backwards else self._behind
        unmet = [len(each) for each in (self._behind if is_backwards else self._before)]
        windows = [_Window(own, self._passes, self._window, is_backwards) for own in self._streams]
        window_of: dict[int, _Window] = {}
        for window in windows:
            for entry in (entry for entries in window.entries for entry in entries):
                unmet[entry] += 1  # until it is let in
            window_of |= dict.fromkeys(window.places, window)
        place_in_order = [0] * len(stages)
        for place, access in enumerate(order):
            place_in_order[access] = place
        count = 1 + max(stages, default=0)
        ready: list[list[int]] = [[] for _ in range(count)]
        taken = [-1] * count
        ends = [0] * len(stages)
        running: list[int] = []  # a heap: when a stage is through, and which
        met = [entry for window in windows for entry in window.let_in()]
        now, push, pop = 0, heapq.heappush, heapq.heappop
        while True:
            for access in met:
                unmet[access] -= 1
                if not unmet[access]:
                    stage = stages[access]
                    push(ready[stage], place_in_order[access])
            for stage, waiting in enumerate(ready):
                if waiting and taken[stage] < 0:
                    access = taken[stage] = order[pop(waiting)]
                    push(running, (now + durations[access]) * count + stage)
            if not running:
                return ends
            now = running[0] // count
            until, met = (now + 1) * count, []
            while running and running[0] < until:
                stage = pop(running) % count
                access, taken[stage] = taken[stage], -1
                ends[access] = now
                met += waiters[access]
                if access in window_of:
                    met += window_of[access].let_in_behind(access)


class _Window:
    """Which ways of a stream may run: so many steps from the oldest on that is not through.

    Args:
        own: all ways, in sequence order.
        passes: of a step.
        window: how many steps.
        is_backwards: from the last way on, each from its last access on.
    """

    def __init__(self, own: Sequence[Way], passes: int, window: int, is_backwards: bool) -> None:
        ways = own[::-1] if is_backwards else own
        ends = [way.ends()[:: -1 if is_backwards else 1] for way in ways]
        self.entries = [first for first, _ in ends]
        """Of each way the accesses that it begins with."""
        self.places = {each: place for place, (_, last) in enumerate(ends) for each in last}
        """Of the accesses that a way ends with: which way that is."""
        self._left = [len(last) for _, last in ends]
        """How many of them each has still to do."""
        self._passes, self._window = passes, window
        self._oldest = self._let_in = 0

    def let_in(self) -> list[int]:
        """The first accesses of those that may run now, too."""
        found: list[int] = []
        while True:
            while self._oldest < self._let_in and not self._left[self._oldest]:
                self._oldest += 1
            begin = self._let_in
            end = (self._oldest // self._passes + self._window) * self._passes
            end = self._let_in = min(len(self.entries), end)
            if end <= begin:
                return found
            found += [entry for entries in self.entries[begin:end] for entry in entries]

    def let_in_behind(self, last: int) -> list[int]:
        """The same when a way is through with an access that it ends with."""
        self._left[place := self.places[last]] -= 1
        return [] if self._left[place] else self.let_in()
