"""Reports from a stage to the launcher, and observers of a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgpack
import zmq

from naspipe.config.errors import TransportError
from naspipe.config.ids import WorkerId
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.transport import connect_outbox

HEARTBEAT_SECONDS = 0.5
"""Time between two heartbeats."""

WAITING = "waiting"
"""Activity of a stage that is waiting for a message."""


class Observer:
    """Base class for observers of a run; override the methods that you need.

    Methods are called in the process that called :func:`naspipe.train`, between its other work.
    The argument ``stream`` is 0 if the run has only one stream. The class is no Protocol, so that a
    subclass may have other bases with an ``__init__`` or a metaclass of their own.
    """

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None: ...

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None: ...

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None: ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None: ...

    def on_hits(self, stage: int, hits: int, reads: int) -> None: ...

    def on_pending(self, stage: int, subnets: int) -> None: ...

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None: ...

    def on_note(self, text: str) -> None: ...


class NotesToStderr(Observer):
    """An observer that prints notes."""

    def on_note(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed stderr must not end the run
            print(f"naspipe: {text}", file=sys.stderr, flush=True)


class AtIt:
    """Measures for how long a process has had the same activity."""

    def __init__(self) -> None:
        self._doing, self._since = "", time.monotonic()

    def look(self, doing: str) -> dict[str, Any]:
        """Return the content of a heartbeat: the current activity and its duration in seconds."""
        now = time.monotonic()
        if doing != self._doing:
            self._doing, self._since = doing, now
        return {"doing": doing, "age": now - self._since}


class ZmqReporter:
    """Sends reports over a socket to the launcher's process; a context manager.

    A thread sends heartbeats through a separate socket.
    """

    def __init__(self, worker: WorkerId, endpoints: Endpoints) -> None:
        self._worker = worker
        self._endpoints = endpoints
        self._context: zmq.Context[Any] = zmq.Context()
        self._outbox = self._connect()
        self._current: Callable[[], str] = lambda: "start"
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="naspipe-heartbeat", daemon=True)

    def __enter__(self) -> ZmqReporter:
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._heart.join()
        self._context.destroy(linger=5_000)

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        self._outbox.send(msgpack.packb([kind, int(self._worker), dict(body)]))

    def watch(self, current: Callable[[], str]) -> None:
        self._current = current

    def _beat(self) -> None:
        at_it = AtIt()
        with self._connect() as outbox:
            outbox.linger = 0  # the launcher may have ended, and the stage may end
            while not self._is_over.wait(HEARTBEAT_SECONDS):
                body = at_it.look(self._current())
                outbox.send(msgpack.packb(["beat", int(self._worker), body]))

    def _connect(self) -> zmq.Socket[Any]:
        return connect_outbox(self._context, self._endpoints.launcher, self._endpoints)


def read_report(data: bytes) -> tuple[str, int, dict[str, Any]]:
    """Return the kind, stage and body of a report."""
    try:
        kind, stage, body = msgpack.unpackb(data)
        return str(kind), int(stage), dict(body)
    except (TypeError, ValueError, OverflowError, msgpack.UnpackException) as error:
        raise TransportError(f"a report cannot be read: {error}") from error
