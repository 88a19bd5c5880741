"""Asks a registry for its cards over and over, beside whoever needs them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from naspipe.config.errors import TransportError
from naspipe.distill.registry import Registry
from naspipe.distill.teacher_card import TeacherCard
from naspipe.wire.transport import Wakeup

BEATS = 4
"""Of a card in the time that it lives."""

_UNREACHABLE = (TransportError, OSError, zmq.ZMQError)
"""Also where this process has no socket left."""

_SHORTEST_SECONDS = 0.05


class RegistryWatch:
    """A thread that keeps the cards up to date.

    A registry that does not answer changes nothing: who is known stays known. Once it answers
    again, nobody is let go of before every teacher had the time to show its card anew.

    Args:
        registries: asked by this thread only, one after the other.
        ttl_seconds: of a card.
        hire: asks for so many more teachers, where there is somebody to ask.
        release: says that a teacher may go.
    """

    def __init__(
        self,
        registries: Sequence[Registry],
        ttl_seconds: float,
        hire: Callable[[int], None] | None = None,
        release: Callable[[str], None] | None = None,
    ) -> None:
        self._asked = [_Asked(each, ttl_seconds) for each in registries]
        self._ttl = ttl_seconds
        self._hire, self._release = hire, release
        self._wishes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._newest: Sequence[TeacherCard] = ()
        self._news = Wakeup()
        self._leaving = Wakeup()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="naspipe-registry", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """For pollers: readable when :meth:`take` has news."""
        return self._news.fileno()

    def take(self) -> Sequence[TeacherCard]:
        """The newest cards."""
        self._news.clear()
        return self._newest

    def hire(self, count: int) -> None:
        """Ask for more teachers; who asks does not wait."""
        if (hire := self._hire) is not None:
            self._wish(lambda: hire(count))

    def release(self, teacher: str) -> None:
        """Say that a teacher may go."""
        if (release := self._release) is not None:
            self._wish(lambda: release(teacher))

    def close(self) -> None:
        """End the thread: within one answer of the registry, or its time-out."""
        self._is_closing = True
        self._leaving.set()
        self._thread.join()
        self._leaving.__exit__()
        self._news.__exit__()

    def _wish(self, wish: Callable[[], None]) -> None:
        self._wishes.put(wish)
        self._leaving.set()

    def _run(self) -> None:
        known: dict[str, TeacherCard] = {}
        pause = _SHORTEST_SECONDS
        while not self._is_closing:
            while not self._wishes.empty():
                with suppress(*_UNREACHABLE):  # a wish is made again when it is still one
                    self._wishes.get()()
            shown = {card.name: card for each in self._asked for card in each.cards()}
            pause = min(1.0, self._ttl / BEATS, 2 * pause)
            if shown != known:
                known, pause = shown, _SHORTEST_SECONDS  # others may be on their way
                self._newest = [known[name] for name in sorted(known)]
                self._news.set()
            if self._leaving.wait(pause):
                self._leaving.clear()


class _Asked:
    """One registry, and what it showed last."""

    def __init__(self, registry: Registry, ttl_seconds: float) -> None:
        self._registry, self._ttl = registry, ttl_seconds
        self._known: dict[str, TeacherCard] = {}
        self._patience_until = 0.0

    def cards(self) -> Sequence[TeacherCard]:
        try:
            shown = {card.name: card for card in self._registry.cards()}
        except _UNREACHABLE:
            self._patience_until = time.monotonic() + 2 * self._ttl
        else:
            is_patient = time.monotonic() < self._patience_until
            self._known = {**self._known, **shown} if is_patient else shown
        return list(self._known.values())
