"""Admits to the inboxes of a process only who holds a secret key of the run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import zmq
from zmq.utils import z85

from naspipe.runtime.wire.wakeup import Wakeup

DOMAIN = b"naspipe"
_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class Authenticator:
    """Answers the library's question for each who knocks (ZeroMQ's ZAP); a context manager.

    To be entered before an inbox of the context is bound, and left before the context ends.

    Args:
        context: of the inboxes.
        public_keys: who may enter; where there are none, everybody is local and nobody asks.
    """

    def __init__(self, context: zmq.Context[Any], public_keys: Iterable[bytes]) -> None:
        self._admitted = frozenset(map(z85.decode, public_keys))
        self._context = context
        self._thread: threading.Thread | None = None
        self._leaving = Wakeup()

    def __enter__(self) -> Self:
        if self._admitted:
            socket: zmq.Socket[Any] = self._context.socket(zmq.REP)
            socket.bind(_ADDRESS)
            self._thread = threading.Thread(
                target=self._answer, args=(socket,), name="naspipe-authenticator", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._leaving.set()
            self._thread.join()
        self._leaving.__exit__()

    def _answer(self, socket: zmq.Socket[Any]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._leaving.fileno(), zmq.POLLIN)
        with socket:
            while self._leaving.fileno() not in dict(poller.poll()):
                _, number, _, _, _, mechanism, *keys = socket.recv_multipart()
                knows = mechanism == b"CURVE" and keys[:1] and keys[0] in self._admitted
                answer = (b"200", b"OK") if knows else (b"400", b"not of this run")
                socket.send_multipart([_VERSION, number, *answer, b"", b""])
