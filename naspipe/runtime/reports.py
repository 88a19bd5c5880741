"""What a stage tells the launcher: losses, how busy it was, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgpack
import zmq

from naspipe.core.errors import TransportError
from naspipe.core.ids import StageId
from naspipe.runtime.transport import Endpoints, connect_outbox


class Reporter(Protocol):
    """Takes a stage's reports to the launcher."""

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        """Hand one report on: ``loss``, ``busy``, ``failed`` or ``done``, with plain values."""
        ...


class LaunchObserver(Protocol):
    """Told of a run as it goes, in the launcher's process: progress bars, metrics."""

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known; steps may come in any order."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's compute time so far, of the time since it began."""
        ...


class SilentObserver:
    """An observer that wants to know nothing."""

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`LaunchObserver`."""

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """See :class:`LaunchObserver`."""


class ZmqReporter:
    """Reports over a socket to the launcher's process; a context manager."""

    def __init__(self, stage: StageId, endpoints: Endpoints) -> None:
        self._stage = stage
        self._context: zmq.Context[Any] = zmq.Context()
        self._outbox = connect_outbox(self._context, endpoints.launcher, endpoints)

    def __enter__(self) -> ZmqReporter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.destroy(linger=5_000)

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        """See :class:`Reporter`."""
        self._outbox.send(msgpack.packb([kind, int(self._stage), dict(body)]))


def read_report(data: bytes) -> tuple[str, int, dict[str, Any]]:
    """Kind, stage and body of a report.

    Raises:
        TransportError: when it is not one that a stage sends.
    """
    try:
        kind, stage, body = msgpack.unpackb(data)
        return str(kind), int(stage), dict(body)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a report cannot be read: {error}") from error
