"""Items of work, in order, in processes of their own, until the hours are over."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import connection
from threading import Thread
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Item:
    """Units that one process does one after the other.

    Args:
        name: what lines of progress call it.
        do: a function of a module, as it goes to another process.
        given: its arguments.
        passes: how long it is, to say what time is left.
        takes_all: it has several processes itself, so nothing else runs beside it.
    """

    name: str
    do: Callable[..., str]
    given: tuple[Any, ...]
    passes: int
    takes_all: bool = False


class Clock:
    """Says what time is left, by what passes took so far."""

    def __init__(self, items: Sequence[Item], hours: float, seconds_per_pass: float) -> None:
        self._end = time.monotonic() + 3600 * hours
        self._begin = time.monotonic()
        self._left = sum(item.passes for item in items)
        self._done = 0
        self._rate = seconds_per_pass
        self.total = len(items)
        self.finished = 0

    @property
    def is_over(self) -> bool:
        """Nothing new may begin."""
        return time.monotonic() >= self._end

    def on_finished(self, item: Item) -> None:
        """Count it."""
        self._left -= item.passes
        self._done += item.passes
        self.finished += 1
        self._rate = (time.monotonic() - self._begin) / max(1, self._done)

    @property
    def left(self) -> str:
        """Time for all that is left, in words."""
        minutes = self._left * self._rate / 60
        return f"{minutes / 60:.1f} h left" if minutes >= 90 else f"{minutes:.0f} min left"


def run_items(items: Sequence[Item], jobs: int, hours: float, seconds_per_pass: float) -> bool:
    """Do all items; returns whether none failed. A line for each that is done."""
    clock = Clock(items, hours, seconds_per_pass / jobs)
    print(f"{len(items)} items, {clock.left}", flush=True)
    waiting, running, good = list(reversed(items)), {}, True
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, end_with_parent) as pool:
        while running or (waiting and not clock.is_over):
            while waiting and not clock.is_over and has_room(waiting[-1], running, jobs):
                item = waiting.pop()
                running[pool.submit(item.do, *item.given)] = (item, time.monotonic())
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item, began = running.pop(future)
                clock.on_finished(item)
                good &= tell(item, future, time.monotonic() - began, clock)
    if waiting:
        print(f"the hours are over; {len(waiting)} items wait", flush=True)
    return good


def end_with_parent() -> None:
    """A worker does not go on without those who wait for it, however they ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=end_behind, args=(parent.sentinel,), daemon=True).start()


def end_behind(sentinel: int) -> None:
    """Wait, and end the process at once."""
    connection.wait([sentinel])
    os._exit(1)


def has_room(item: Item, running: dict[Future[str], tuple[Item, float]], jobs: int) -> bool:
    """Whether an item may begin beside those that run."""
    if item.takes_all or any(other.takes_all for other, _ in running.values()):
        return not running
    return len(running) < jobs


def tell(item: Item, future: Future[str], seconds: float, clock: Clock) -> bool:
    """One line of progress; returns whether the item went well."""
    error = future.exception()
    said = future.result() if error is None else f"failed: {error!r:.200}"
    place = f"[{clock.finished}/{clock.total}]"
    print(f"{place} {item.name}: {said}; {seconds:.0f} s; {clock.left}", flush=True)
    if error is not None:
        traceback.print_exception(error, file=sys.stderr)
    return error is None
