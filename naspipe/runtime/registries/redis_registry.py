"""Cards in a Redis: one key each, which expires by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from naspipe.config.errors import ConfigError, TransportError
from naspipe.runtime.registries.own_registry import MAX_CARDS
from naspipe.runtime.registries.teacher_card import TeacherCard, pack_card, read_card

PREFIX = "naspipe:teacher:"
"""Of the keys."""
TIMEOUT_SECONDS = 2.0

T = TypeVar("T")


class RedisRegistry:
    """A :class:`naspipe.runtime.registries.ports.Registry` in a Redis or Valkey server.

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
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
        milliseconds = max(1, round(ttl_seconds * 1000))
        self._try(lambda: self._client.set(PREFIX + card.name, pack_card(card), px=milliseconds))

    def withdraw(self, name: str) -> None:
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
        self._try(lambda: self._client.delete(PREFIX + name))

    def cards(self) -> Sequence[TeacherCard]:
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
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
