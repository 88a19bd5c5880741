"""Vector clocks: who did what to which bytes, and what is ordered before what.

Knows nothing of torch. Accesses are told in the order in which they are launched, so an access can
only be ordered behind those that were told before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

GRANULE = 9
"""Accesses are found by their addresses divided by 512; they are compared byte by byte."""

Clock = dict[int, int]
"""By actor: how much of what it did is known."""


class RaceError(AssertionError):
    """Two accesses to the same bytes, one of them a write, neither ordered before the other."""


class WrongBytesError(AssertionError):
    """Something was read that is not what the plain order of things would have left there."""


class Access(NamedTuple):
    """Bytes from ``start`` up to ``end``, touched by an actor at a time of its own."""

    actor: int
    time: int
    start: int
    end: int
    writes: bool
    what: str


class Recorder:
    """Clocks of all actors, and the accesses that a later one may still collide with.

    An actor is a host thread or a queue of a device.

    Args:
        watches: whether races are looked for; otherwise only wrong bytes are found.
    """

    def __init__(self, watches: bool = True) -> None:
        self._watches = watches
        self._names: list[str] = []
        self._clocks: list[Clock] = []
        self._granules: dict[int, list[Access]] = {}
        self.acting = self.actor("compute thread")
        """The host thread that runs now."""
        self.accesses = 0
        self.found: AssertionError | None = None
        """What was reported first: code under test may have swallowed it."""

    def actor(self, name: str) -> int:
        """A new actor, of which nobody knows anything yet."""
        number = len(self._names)
        self._names.append(name)
        self._clocks.append({number: 1})
        return number

    @contextmanager
    def as_actor(self, actor: int) -> Iterator[None]:
        """What is done meanwhile is done by another host thread."""
        before, self.acting = self.acting, actor
        try:
            yield
        finally:
            self.acting = before

    def tell(self, actor: int | None = None) -> Clock:
        """All that an actor (the running thread) did and knows, for whoever learns of it."""
        number = self.acting if actor is None else actor
        clock = self._clocks[number]
        told = dict(clock)
        clock[number] += 1
        return told

    def learn(self, told: Clock, actor: int | None = None) -> None:
        """What an actor (the running thread) does from now on is behind what was told."""
        clock = self._clocks[self.acting if actor is None else actor]
        for other, time in told.items():
            if clock.get(other, 0) < time:
                clock[other] = time

    def access(self, actor: int, start: int, end: int, writes: bool, what: str) -> None:
        """An actor touches bytes.

        Raises:
            RaceError: when somebody else did so, and neither is ordered before the other.
        """
        self.accesses += 1
        if not self._watches or end <= start:
            return
        clock = self._clocks[actor]
        new = Access(actor, clock[actor], start, end, writes, what)
        for granule in range(start >> GRANULE, (end - 1 >> GRANULE) + 1):
            first, last = granule << GRANULE, granule + 1 << GRANULE
            others = self._granules.get(granule, ())
            kept = [other for other in others if not self._is_past(other, new, first, last)]
            self._granules[granule] = [*kept, new]

    def _is_past(self, old: Access, new: Access, first: int, last: int) -> bool:
        """Whether who collides with the old access in this granule does so with the new one."""
        if old.end <= new.start or new.end <= old.start:
            return False
        is_ordered = old.time <= self._clocks[new.actor].get(old.actor, 0)
        if not is_ordered:
            if (old.writes or new.writes) and max(old.start, new.start, first) < min(
                old.end, new.end, last
            ):
                self.report(RaceError(f"{self._text(old)} and {self._text(new)} are not ordered"))
            return False
        covers = new.start <= max(old.start, first) and min(old.end, last) <= new.end
        return covers and (new.writes or not old.writes)

    def report(self, error: AssertionError) -> None:
        """Keep the first finding, and raise it."""
        self.found = self.found or error
        raise error

    def check(self) -> None:
        """Raise what was found, if somebody caught it."""
        if self.found is not None:
            raise self.found

    def _text(self, access: Access) -> str:
        how = "writes" if access.writes else "reads"
        where = f"{access.start:#x} to {access.end:#x}"
        return f"'{access.what}' ({self._names[access.actor]} {how} {where})"


class ToldDeque(deque[Any]):
    """A deque between threads: who takes an item knows what was done before it was put in."""

    def __init__(self, recorder: Recorder, items: Iterable[Any] = ()) -> None:
        super().__init__()
        self._recorder = recorder
        self.extend(items)

    def append(self, item: Any) -> None:
        super().append((item, self._recorder.tell()))

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def popleft(self) -> Any:
        return self._taken(super().popleft)

    def pop(self) -> Any:
        return self._taken(super().pop)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)[0]

    def _taken(self, take: Callable[[], Any]) -> Any:
        item, told = take()
        self._recorder.learn(told)
        return item


class ToldQueue:
    """As :class:`queue.Queue`, but for waiting: at its end is None."""

    def __init__(self, recorder: Recorder) -> None:
        self._items = ToldDeque(recorder)

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        return self._items.popleft() if self._items else None
