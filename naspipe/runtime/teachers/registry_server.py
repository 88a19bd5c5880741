"""A run's own registry: a table of cards that expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack
import zmq

from naspipe.config.errors import TransportError
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
_MOST_AT_ONCE = 256


class _Shown(NamedTuple):
    card: bytes
    until: float
    is_own: bool


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
        self._cards: dict[str, _Shown] = {}

    def answer(self, data: bytes, is_own: bool = True) -> Any:
        """What to answer; what cannot be read, or is not for strangers, is answered with None.

        Args:
            data: what is asked.
            is_own: whether a process of the run asks. Others hire and release nobody, and leave
                the cards of the run's own teachers alone.
        """
        try:
            words = msgpack.unpackb(data)
            return self._answer(words, is_own)
        except (TypeError, ValueError, TransportError, msgpack.UnpackException, RecursionError):
            return None

    def _answer(self, words: Any, is_own: bool) -> Any:
        now = self._clock()
        self._cards = {name: each for name, each in self._cards.items() if each.until > now}
        match words:
            case [kind, bytes(card), int(ttl) | float(ttl)] if kind == ANNOUNCE:
                name = read_card(card).name
                if not 0 < ttl <= _MAX_TTL_SECONDS:
                    raise ValueError(f"a time of {ttl} seconds")
                self._check(name, is_own)
                if is_own or name in self._cards or len(self._cards) < MAX_CARDS:
                    self._cards[name] = _Shown(card, now + ttl, is_own)
            case [kind, str(name)] if kind == WITHDRAW:
                self._check(name, is_own)
                self._cards.pop(name, None)
            case [kind] if kind == CARDS:
                return [each.card for each in self._cards.values()]
            case [kind, int(count)] if kind == HIRE and is_own:
                self._hire(count)
            case [kind, str(name)] if kind == RELEASE and is_own:
                self._release(name)
            case _:
                raise ValueError("unknown words")
        return []

    def _check(self, name: str, is_own: bool) -> None:
        shown = self._cards.get(name)
        if shown is not None and shown.is_own and not is_own:
            raise ValueError(f"{name:.80} is a teacher of the run")


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


def serve(sockets: Mapping[zmq.Socket[Any], bool], table: CardTable, wait_ms: int) -> None:
    """Answer what has come, or comes in so many milliseconds.

    Args:
        sockets: and of each whether only processes of the run reach it.
        table: what is asked.
        wait_ms: at most.
    """
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    for socket, _ in poller.poll(wait_ms):
        for _ in range(_MOST_AT_ONCE):
            if not socket.poll(0):
                break
            frames = socket.recv_multipart()
            if len(frames) == 3 and not frames[1]:  # of a REQ socket: who, nothing, what
                answer = msgpack.packb(table.answer(frames[2], sockets[socket]))
                socket.send_multipart([frames[0], b"", answer])
