"""A run's own registry: a table of cards that expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import zmq

from naspipe.core.errors import TransportError
from naspipe.runtime.registries.own_registry import (
    ANNOUNCE,
    CARDS,
    HIRE,
    MAX_CARDS,
    RELEASE,
    WITHDRAW,
)
from naspipe.runtime.registries.teacher_card import MAX_CARD_BYTES, read_card

_MAX_TTL_SECONDS = 86_400.0


class CardTable:
    """Cards by name, each until its time is over; answers what registries are asked.

    Args:
        clock: seconds of a monotonic clock.
        hire: called with how many more teachers are wanted.
        release: called with the name of one that may go.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        hire: Callable[[int], None] = lambda count: None,
        release: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._clock, self._hire, self._release = clock, hire, release
        self._cards: dict[str, tuple[bytes, float]] = {}

    def answer(self, data: bytes, is_own: bool = True) -> Any:
        """What to answer; what cannot be read is answered with None.

        Args:
            data: what was asked.
            is_own: of the run itself, which alone may hire and release.
        """
        try:
            words = msgpack.unpackb(data)
            if not is_own and words[:1] in ([HIRE], [RELEASE]):
                return None
            return self._answer(words)
        except (TypeError, ValueError, TransportError, msgpack.UnpackException, RecursionError):
            return None

    def _answer(self, words: Any) -> Any:
        now = self._clock()
        self._cards = {name: each for name, each in self._cards.items() if each[1] > now}
        match words:
            case [kind, bytes(card), int(ttl) | float(ttl)] if kind == ANNOUNCE:
                name = read_card(card).name
                if not 0 < ttl <= _MAX_TTL_SECONDS:
                    raise ValueError(f"a time of {ttl} seconds")
                if name in self._cards or len(self._cards) < MAX_CARDS:
                    self._cards[name] = card, now + ttl
            case [kind, str(name)] if kind == WITHDRAW:
                self._cards.pop(name, None)
            case [kind] if kind == CARDS:
                return [card for card, _ in self._cards.values()]
            case [kind, int(count)] if kind == HIRE:
                self._hire(count)
            case [kind, str(name)] if kind == RELEASE:
                self._release(name)
            case _:
                raise ValueError("unknown words")
        return []


def listen(context: zmq.Context[Any], address: str) -> zmq.Socket[Any]:
    """The socket of a registry, at ``ipc://`` or ``tcp://``.

    What comes in over it introduces and nothing more, so anybody may come.

    Raises:
        TransportError: when it cannot listen there.
    """
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_CARD_BYTES)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise TransportError(f"{address}: cannot listen there: {error}") from error
    return socket


def serve(sockets: Sequence[zmq.Socket[Any]], table: CardTable, wait_ms: int) -> None:
    """Answer what has come, or comes in so many milliseconds; the first socket is the run's own."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    for socket, _ in poller.poll(wait_ms):
        while socket.poll(0):
            frames = socket.recv_multipart()
            if len(frames) == 3 and not frames[1]:  # of a REQ socket: who, nothing, what
                answer = msgpack.packb(table.answer(frames[2], socket is sockets[0]))
                socket.send_multipart([frames[0], b"", answer])
