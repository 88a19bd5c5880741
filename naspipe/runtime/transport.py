"""Any stage to any stage: msgpack headers and tensor frames over ZeroMQ.

Sending and receiving happen in ZeroMQ's own thread, beside the compute. On one machine
sockets are ``ipc`` files in a private directory; ``tcp`` binds the loopback interface only,
with CURVE keys made for the run, so that strangers are dropped by the library.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgpack
import torch
import zmq

from naspipe.core.errors import ConfigError, TransportError
from naspipe.core.ids import PassId, SequenceId, StageId, StreamId
from naspipe.core.task import Task, TaskKind
from naspipe.runtime.tensor_codec import decode, encode

MAX_FRAME_BYTES = 4 << 30
"""Larger frames are refused by the library before any memory is taken."""

_LINGER_MS = 10_000
_MAX_IPC_PATH = 90

Message = tuple[Task, tuple[torch.Tensor | None, ...]]


class Transport(Protocol):
    """How a stage hands tensors to another one."""

    def send(self, receiver: Task, tensors: Sequence[torch.Tensor | None]) -> None:
        """Start sending the input of ``receiver``; the tensors must not change afterwards."""
        ...

    def receive(self, timeout_seconds: float) -> Message | None:
        """The next message, or None when there was none in time (0 only looks)."""
        ...


class NoTransport:
    """The transport of a run on one stage: there is nobody to talk to."""

    def send(self, receiver: Task, tensors: Sequence[torch.Tensor | None]) -> None:
        """Never right on one stage."""
        raise TransportError(f"{receiver}: there is only one stage")

    def receive(self, timeout_seconds: float) -> Message | None:
        """Nothing ever arrives."""
        return None


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the stages and of the launcher, and the run's CURVE keys (tcp only)."""

    stages: tuple[str, ...]
    launcher: str
    server_keys: tuple[bytes, bytes] | None = None
    client_keys: tuple[bytes, bytes] | None = None


def ipc_endpoints(directory: Path, num_stages: int) -> Endpoints:
    """Endpoints in a private directory.

    Raises:
        ConfigError: when its path is too long for a socket's name.
    """
    if len(str(directory)) > _MAX_IPC_PATH:
        raise ConfigError(
            f"the temporary directory {directory} is too long for a socket's name (expected at "
            f"most {_MAX_IPC_PATH} characters): set TMPDIR to a shorter one, or --set transport=tcp"
        )
    stages = tuple(f"ipc://{directory}/stage-{stage}" for stage in range(num_stages))
    return Endpoints(stages, f"ipc://{directory}/launcher")


def tcp_endpoints(port: int, num_stages: int) -> Endpoints:
    """Endpoints on the loopback interface, with new keys.

    Raises:
        ConfigError: when one of the ports is in use.
    """
    for number in range(port, port + num_stages + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", number))
            except OSError as error:
                raise ConfigError(
                    f"port {number} is in use ({error.strerror}): {num_stages} stages need the "
                    f"ports {port} to {port + num_stages} free; choose others with --set port=N"
                ) from None
    addresses = [f"tcp://127.0.0.1:{number}" for number in range(port, port + num_stages + 1)]
    keys = (zmq.curve_keypair(), zmq.curve_keypair())
    return Endpoints(tuple(addresses[:-1]), addresses[-1], *keys)


def bind_inbox(context: zmq.Context[Any], address: str, endpoints: Endpoints) -> zmq.Socket[Any]:
    """A socket that collects what others send to an address."""
    inbox: zmq.Socket[Any] = context.socket(zmq.PULL)
    _limit(inbox)
    if endpoints.server_keys:
        inbox.curve_server = True
        inbox.curve_publickey, inbox.curve_secretkey = endpoints.server_keys
    try:
        inbox.bind(address)
    except zmq.ZMQError as error:
        inbox.close(0)
        raise TransportError(f"{address}: cannot listen there: {error}") from error
    return inbox


def connect_outbox(
    context: zmq.Context[Any], address: str, endpoints: Endpoints
) -> zmq.Socket[Any]:
    """A socket that sends to an address."""
    outbox: zmq.Socket[Any] = context.socket(zmq.PUSH)
    _limit(outbox)
    if endpoints.server_keys and endpoints.client_keys:
        outbox.curve_serverkey = endpoints.server_keys[0]
        outbox.curve_publickey, outbox.curve_secretkey = endpoints.client_keys
    outbox.connect(address)
    return outbox


def _limit(endpoint: zmq.Socket[Any]) -> None:
    # The admission window bounds what is under way, so queues need no bound of their own.
    endpoint.set_hwm(0)
    endpoint.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    endpoint.setsockopt(zmq.LINGER, _LINGER_MS)


class ZmqTransport:
    """One stage's sockets; a context manager that gives unsent messages ten seconds to leave."""

    def __init__(self, stage: StageId, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox = bind_inbox(self._context, endpoints.stages[stage], endpoints)
        self._outboxes: dict[StageId, zmq.Socket[Any]] = {}

    def __enter__(self) -> ZmqTransport:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.destroy(linger=_LINGER_MS)

    def send(self, receiver: Task, tensors: Sequence[torch.Tensor | None]) -> None:
        """See :class:`Transport`."""
        outbox = self._outboxes.get(receiver.stage)
        if outbox is None:
            address = self._endpoints.stages[receiver.stage]
            outbox = connect_outbox(self._context, address, self._endpoints)
            self._outboxes[receiver.stage] = outbox
        entries, frames = zip(*map(encode, tensors), strict=True) if tensors else ((), ())
        stream, sequence_id, pass_id, kind, stage = receiver
        header = msgpack.packb([stream, sequence_id, pass_id, kind.value, stage, entries])
        outbox.send_multipart([header, *frames], copy=False)

    def receive(self, timeout_seconds: float) -> Message | None:
        """See :class:`Transport`."""
        # Asked for after every block: looking at the socket's state is cheaper than a poll.
        is_here = bool(int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
        if not is_here and timeout_seconds:
            is_here = bool(self._inbox.poll(int(timeout_seconds * 1000)))
        if not is_here:
            return None
        header, *frames = self._inbox.recv_multipart(copy=False)
        return read_message(header.buffer, [frame.buffer for frame in frames])


def read_message(header: Any, frames: Sequence[Any]) -> Message:
    """Rebuild a message.

    Raises:
        TransportError: when it is not one that a stage sends.
    """
    try:
        stream, sequence_id, pass_id, kind, stage, entries = msgpack.unpackb(header)
        task = Task(
            StreamId(stream), SequenceId(sequence_id), PassId(pass_id), TaskKind(kind),
            StageId(stage),
        )  # fmt: skip
        pairs = list(zip(entries, frames, strict=True))
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a message header cannot be read: {error}") from error
    return task, tuple(decode(entry, frame) for entry, frame in pairs)
