"""A registry by its address."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgpack
import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.distill.teacher_card import MAX_CARD_BYTES, TeacherCard, pack_card, read_card

ANNOUNCE, WITHDRAW, CARDS, HIRE, RELEASE = "announce", "withdraw", "cards", "hire", "release"
MAX_CARDS = 4096


class OwnRegistry:
    """A :class:`naspipe.distill.registry.Registry` that a process of the run keeps.

    It may be used from several threads; each call has a socket of its own.

    Args:
        address: of the registry.
        timeout_seconds: for an answer.
    """

    def __init__(self, address: str, timeout_seconds: float = 2.0) -> None:
        self._address = address
        self._timeout_ms = max(1, int(timeout_seconds * 1000))
        self._lock = threading.Lock()

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        """See :class:`naspipe.distill.registry.Registry`."""
        self._ask([ANNOUNCE, pack_card(card), ttl_seconds])

    def withdraw(self, name: str) -> None:
        """See :class:`naspipe.distill.registry.Registry`."""
        self._ask([WITHDRAW, name])

    def cards(self) -> Sequence[TeacherCard]:
        """See :class:`naspipe.distill.registry.Registry`."""
        found = self._ask([CARDS])
        cards = []
        for data in found if isinstance(found, list) else ():
            try:
                cards.append(read_card(data))
            except TransportError:
                continue  # not this one
        return sorted(cards)

    def hire(self, count: int) -> None:
        """The run's own teachers may become so many more, as far as its settings let them."""
        self._ask([HIRE, count])

    def release(self, name: str) -> None:
        """One of the run's own teachers may go."""
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


PREFIX = "naspipe:teacher:"
"""Of the keys."""
TIMEOUT_SECONDS = 2.0

T = TypeVar("T")


class RedisRegistry:
    """A :class:`naspipe.distill.registry.Registry` in a Redis or Valkey server.

    Args:
        url: ``redis://HOST[:PORT][/DATABASE]``, also with a password; or ``rediss://`` with TLS.

    Raises:
        ConfigError: without the extra ``redis``, or for an address that is none.
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
        """See :class:`naspipe.distill.registry.Registry`."""
        milliseconds = max(1, round(ttl_seconds * 1000))
        self._try(lambda: self._client.set(PREFIX + card.name, pack_card(card), px=milliseconds))

    def withdraw(self, name: str) -> None:
        """See :class:`naspipe.distill.registry.Registry`."""
        self._try(lambda: self._client.delete(PREFIX + name))

    def cards(self) -> Sequence[TeacherCard]:
        """See :class:`naspipe.distill.registry.Registry`."""
        found = []
        for data in self._try(self._read):
            try:
                found.append(read_card(data))
            except TransportError:
                continue  # not one of ours
        return sorted(found)

    def _read(self) -> list[bytes]:
        keys = []
        for key in self._client.scan_iter(match=f"{PREFIX}*", count=1000):
            keys.append(key)
            if len(keys) >= MAX_CARDS:
                break
        return [data for data in self._client.mget(keys) if data] if keys else []

    def _try(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except Exception as error:  # also what its client says of a server that is none
            kind = "" if isinstance(error, self._problems) else f"{type(error).__name__}: "
            said = kind + " ".join(str(error).split())
            raise TransportError(f"the registry does not answer: {said:.200}") from error
        finally:
            with suppress(Exception):  # processes that are forked have connections of their own
                self._client.connection_pool.disconnect(inuse_connections=False)


class Registry(Protocol):
    """Holds teachers' cards for as long as they are renewed. It may be down: labels flow on."""

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        """Show a card, or go on to show it, for so long.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...

    def withdraw(self, name: str) -> None:
        """Show it no longer.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...

    def cards(self) -> Sequence[TeacherCard]:
        """Those that are shown now, by name; what is no card is left out.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...


def open_registry(url: str) -> Registry:
    """``redis://...`` or ``rediss://...``, or ``tcp://HOST:PORT`` of a run's own.

    Raises:
        ConfigError: for another one, or without the extra ``redis``.
    """
    if url.startswith(("redis://", "rediss://")):
        return RedisRegistry(url)
    if re.fullmatch(r"tcp://[^:/]+:\d{1,5}", url):
        return OwnRegistry(url)
    raise ConfigError(f"registry: expected redis://HOST or tcp://HOST:PORT, found {url:.80}")
