"""A run's own registry as a teacher or a student sees it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgpack
import zmq

from naspipe.config.errors import TransportError
from naspipe.runtime.registries.teacher_card import (
    MAX_CARD_BYTES,
    TeacherCard,
    pack_card,
    read_card,
)

ANNOUNCE, WITHDRAW, CARDS, HIRE, RELEASE = "announce", "withdraw", "cards", "hire", "release"
MAX_CARDS = 4096


class OwnRegistry:
    """A :class:`naspipe.runtime.registries.ports.Registry` that a process of the run keeps.

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
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
        self._ask([ANNOUNCE, pack_card(card), ttl_seconds])

    def withdraw(self, name: str) -> None:
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
        self._ask([WITHDRAW, name])

    def cards(self) -> Sequence[TeacherCard]:
        """See :class:`naspipe.runtime.registries.ports.Registry`."""
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
