"""Registries hold the cards of teachers for as long as the teachers renew them.

:class:`OwnRegistry` runs in a process of the run, :class:`RedisRegistry` is an external server.
:class:`RegistryWatch` is the thread that reads their cards for a student. If a registry is down,
labels continue to arrive from the known teachers.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgpack
import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.distill.teacher_card import MAX_CARD_BYTES, TeacherCard, pack_card, read_card
from naspipe.wire.transport import Wakeup

ANNOUNCE, WITHDRAW, CARDS, HIRE, RELEASE = "announce", "withdraw", "cards", "hire", "release"
MAX_CARDS = 4096

PREFIX = "naspipe:teacher:"
"""Prefix of the keys in a Redis server."""
TIMEOUT_SECONDS = 2.0

T = TypeVar("T")


class Registry(Protocol):
    """A store of cards; each method raises a TransportError if the registry does not answer."""

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        """Publish a card for this time, or extend its time."""
        ...

    def withdraw(self, name: str) -> None:
        """Remove the card of a teacher."""
        ...

    def cards(self) -> Sequence[TeacherCard]:
        """Return the current cards, sorted by name; invalid ones are omitted."""
        ...


def _valid_cards(found: Iterable[Any]) -> list[TeacherCard]:
    cards = []
    for data in found:
        with suppress(TransportError):
            cards.append(read_card(data))
    return sorted(cards)


class OwnRegistry:
    """A registry in a process of the run.

    It may be used from several threads; each call opens its own socket.
    """

    def __init__(self, address: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._address = address
        self._timeout_ms = max(1, int(timeout_seconds * 1000))
        self._lock = threading.Lock()

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        self._ask([ANNOUNCE, pack_card(card), ttl_seconds])

    def withdraw(self, name: str) -> None:
        self._ask([WITHDRAW, name])

    def cards(self) -> Sequence[TeacherCard]:
        found = self._ask([CARDS])
        return _valid_cards(found if isinstance(found, list) else ())

    def hire(self, count: int) -> None:
        """Start more of the run's own teachers, as far as its settings allow."""
        self._ask([HIRE, count])

    def release(self, name: str) -> None:
        self._ask([RELEASE, name])

    def _ask(self, words: list[Any]) -> Any:
        with self._lock, zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_CARDS * MAX_CARD_BYTES)
            socket.connect(self._address)
            socket.send(msgpack.packb(words))
            if not socket.poll(self._timeout_ms):
                raise TransportError(f"the registry at {self._address} does not answer")
            try:
                return msgpack.unpackb(socket.recv())
            except (ValueError, msgpack.UnpackException) as error:
                raise TransportError(f"the registry at {self._address}: {error}") from error


class RedisRegistry:
    """A registry in a Redis or Valkey server.

    Args:
        url: ``redis://HOST[:PORT][/DATABASE]``, optionally with a password; or ``rediss://`` with
            TLS.

    Raises:
        ConfigError: if the extra ``redis`` is not installed, or for an invalid address.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError:
            raise ConfigError(
                f"{url}: expected the package redis, found none: pip install 'naspipe[redis]'"
            ) from None
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
            )
        except ValueError as error:
            raise ConfigError(f"{url}: expected redis://HOST[:PORT][/DATABASE]: {error}") from None
        self._problems = (redis.RedisError, OSError)

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        milliseconds = max(1, round(ttl_seconds * 1000))
        self._try(lambda: self._client.set(PREFIX + card.name, pack_card(card), px=milliseconds))

    def withdraw(self, name: str) -> None:
        self._try(lambda: self._client.delete(PREFIX + name))

    def cards(self) -> Sequence[TeacherCard]:
        def read() -> list[bytes]:
            keys = []
            for key in self._client.scan_iter(match=f"{PREFIX}*", count=1000):
                keys.append(key)
                if len(keys) >= MAX_CARDS:
                    break
            return [data for data in self._client.mget(keys) if data] if keys else []

        return _valid_cards(self._try(read))

    def _try(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except Exception as error:  # the client raises anything if the server is not Redis
            kind = "" if isinstance(error, self._problems) else f"{type(error).__name__}: "
            found = kind + " ".join(str(error).split())
            raise TransportError(f"the registry does not answer: {found:.200}") from error
        finally:
            with suppress(Exception):  # forked processes must have their own connections
                self._client.connection_pool.disconnect(inuse_connections=False)


def open_registry(url: str) -> Registry:
    """Open ``redis://...`` or ``rediss://...``, or a run's ``tcp://HOST:PORT``.

    Raises:
        ConfigError: for another address, or if the extra ``redis`` is not installed.
    """
    if url.startswith(("redis://", "rediss://")):
        return RedisRegistry(url)
    if re.fullmatch(r"tcp://[^:/]+:\d{1,5}", url):
        return OwnRegistry(url)
    raise ConfigError(f"registry: expected redis://HOST or tcp://HOST:PORT, found {url:.80}")


BEATS = 4
"""Number of times that a card is renewed, and the registries are read, per lifetime of a card."""

_UNREACHABLE = (TransportError, OSError, zmq.ZMQError)
"""Errors of an unreachable registry, including those raised if no more sockets can be opened."""

_SHORTEST_SECONDS = 0.05


class RegistryWatch:
    """A thread that keeps the cards up to date.

    If a registry does not answer, its teachers remain known. After it answers again, no teacher is
    removed until every teacher has had time to publish its card again.

    Args:
        registries: read only by this thread, one after the other.
        ttl_seconds: lifetime of a card.
        own: the registry of the run, which hires and releases teachers.
    """

    def __init__(
        self,
        registries: Sequence[Registry],
        ttl_seconds: float,
        own: OwnRegistry | None = None,
    ) -> None:
        self._registries = registries
        self._ttl = ttl_seconds
        self._own = own
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._newest: Sequence[TeacherCard] = ()
        self._news = Wakeup()
        self._leaving = Wakeup()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="naspipe-registry", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor for pollers, which is readable when :meth:`take` has news."""
        return self._news.fileno()

    def take(self) -> Sequence[TeacherCard]:
        self._news.clear()
        return self._newest

    def hire(self, count: int) -> None:
        """Request more teachers, without waiting for the registry."""
        if (own := self._own) is not None:
            self._request(lambda: own.hire(count))

    def release(self, teacher: str) -> None:
        """Release a teacher, without waiting for the registry."""
        if (own := self._own) is not None:
            self._request(lambda: own.release(teacher))

    def close(self) -> None:
        """End the thread, which takes at most one answer of the registry or its time-out."""
        self._is_closing = True
        self._leaving.set()
        self._thread.join()
        self._leaving.__exit__()
        self._news.__exit__()

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.put(request)
        self._leaving.set()

    def _run(self) -> None:
        known: dict[str, TeacherCard] = {}
        of_registry: list[dict[str, TeacherCard]] = [{} for _ in self._registries]
        """The cards that each registry returned last."""
        kept_until = [0.0] * len(of_registry)
        """Time until which a registry that was down may be missing cards."""
        pause = _SHORTEST_SECONDS
        while not self._is_closing:
            while not self._requests.empty():
                with suppress(*_UNREACHABLE):  # the scheduler asks again if it is still necessary
                    self._requests.get()()
            for number, registry in enumerate(self._registries):
                try:
                    shown = {card.name: card for card in registry.cards()}
                except _UNREACHABLE:
                    kept_until[number] = time.monotonic() + 2 * self._ttl
                else:
                    if time.monotonic() < kept_until[number]:
                        shown = {**of_registry[number], **shown}
                    of_registry[number] = shown
            found = {name: card for cards in of_registry for name, card in cards.items()}
            pause = min(1.0, self._ttl / BEATS, 2 * pause)
            if found != known:
                known, pause = found, _SHORTEST_SECONDS  # more changes may follow soon
                self._newest = [known[name] for name in sorted(known)]
                self._news.set()
            if self._leaving.wait(pause):
                self._leaving.clear()
