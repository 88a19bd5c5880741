"""Messages between any two stages: msgpack headers and tensor frames over ZeroMQ.

ZeroMQ sends and receives in a separate thread, concurrently with compute. On one machine, sockets
are ``ipc`` files in a private directory; ``tcp`` binds only one address (that of the loopback
interface on one machine), with CURVE keys created for the run, so that ZeroMQ rejects connections
from outside the run.
"""

from __future__ import annotations

import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

import torch
import zmq
from zmq.utils import z85

from naspipe.config.errors import TransportError
from naspipe.config.ids import WorkerId
from naspipe.engine.events import LAYER
from naspipe.machine.staging import HOST, Staging
from naspipe.wire.endpoints import Endpoints
from naspipe.wire.messages import (
    Announcement,
    InputMessage,
    LauncherMessage,
    Message,
    Place,
    ReleaseMessage,
    StageMessage,
    VersionMessage,
    announcement_frames,
    read_message,
    release_frames,
    stage_frames,
)
from naspipe.wire.ports import Sending
from naspipe.wire.shared_rings import SharedFrames

TICK_SECONDS = 1e-3
"""Resolution of polls in seconds."""
NAP_SECONDS = 100e-6
"""Maximum sleep in a shorter wait for a copy, which does not poll messages."""


class Wakeup:
    """A file descriptor that is readable from ``set`` to ``clear``; a context manager."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return  # the wakeup was not set

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the wakeup only; return True if it is set. It may end up to a tick early."""
        if timeout_seconds < TICK_SECONDS:
            time.sleep(min(timeout_seconds, NAP_SECONDS))
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(int(timeout_seconds / TICK_SECONDS)))


DOMAIN = b"naspipe"
_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class Authenticator:
    """Authenticates each connection for ZeroMQ (by its ZAP protocol); a context manager.

    Enter it before an inbox of the context is bound, and exit it before the context ends.

    Args:
        context: the context of the inboxes.
        public_keys: the admitted keys; if empty, all peers are local and are not authenticated.
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

    def __exit__(self, *exception: object) -> None:
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


MAX_FRAME_BYTES = 1 << 30
"""Maximum size of a frame; ZeroMQ rejects larger ones before it allocates any memory."""

_LINGER_MS = 10_000


class NoTransport:
    """The transport of a run on one stage, which has no peers and only waits for copies.

    Args:
        mailbox: messages from the launcher, which runs in the same process.
        wakeup: ends a wait.
    """

    def __init__(self, mailbox: deque[LauncherMessage], wakeup: Wakeup) -> None:
        self._mailbox = mailbox
        self._wakeup = wakeup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        raise TransportError(f"worker {worker}: there is only one")

    def receive(self, timeout_seconds: float) -> Message | None:
        """Return a message of the launcher, or None after the time-out or a wakeup."""
        if self._mailbox:
            return self._mailbox.popleft()
        if timeout_seconds and self._wakeup.wait(timeout_seconds):
            self._wakeup.clear()
        return None


def bind_inbox(context: zmq.Context[Any], address: str, endpoints: Endpoints) -> zmq.Socket[Any]:
    """Return a socket that receives the messages sent to an address."""
    inbox: zmq.Socket[Any] = context.socket(zmq.PULL)
    _limit(inbox)
    if endpoints.own_keys:
        inbox.curve_server = True
        inbox.zap_domain = DOMAIN
        inbox.curve_publickey, inbox.curve_secretkey = endpoints.own_keys
    try:
        inbox.bind(address)
    except zmq.ZMQError as error:
        inbox.close(0)
        raise TransportError(f"{address}: cannot listen there: {error}") from error
    return inbox


def connect_outbox(
    context: zmq.Context[Any], address: str, endpoints: Endpoints
) -> zmq.Socket[Any]:
    """Return a socket that sends to an address."""
    outbox: zmq.Socket[Any] = context.socket(zmq.PUSH)
    _limit(outbox)
    if endpoints.own_keys:
        outbox.curve_serverkey = endpoints.public_keys[address]
        outbox.curve_publickey, outbox.curve_secretkey = endpoints.own_keys
    outbox.connect(address)
    return outbox


def _limit(endpoint: zmq.Socket[Any]) -> None:
    # The admission window bounds the number of messages in flight, so queues need no limit.
    endpoint.set_hwm(0)
    endpoint.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    endpoint.setsockopt(zmq.LINGER, _LINGER_MS)


def _nbytes(frame: bytes | memoryview | zmq.Frame) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


class ZmqTransport:
    """The sockets of one stage; a context manager that waits up to ten seconds for unsent messages.

    Args:
        worker: the ID of this worker.
        endpoints: the addresses of all workers.
        wakeup: ends a wait for messages.
        staging: allocates host memory for transfers from and to the stage's device.
    """

    def __init__(
        self, worker: WorkerId, endpoints: Endpoints, wakeup: Wakeup, staging: Staging = HOST
    ) -> None:
        self._worker = worker
        self._staging = staging
        self._endpoints = endpoints
        self._wakeup = wakeup
        self._context: zmq.Context[Any] = zmq.Context()
        with ExitStack() as stack:
            stack.callback(self._context.destroy, linger=_LINGER_MS)
            stack.enter_context(Authenticator(self._context, endpoints.public_keys.values()))
            self._inbox = bind_inbox(self._context, endpoints.workers[worker], endpoints)
            self._resources = stack.pop_all()
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(wakeup.fileno(), zmq.POLLIN)
        self._outboxes: dict[WorkerId, zmq.Socket[Any]] = {}
        self._shared = SharedFrames(worker, endpoints.rings) if endpoints.rings else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._resources.close()

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        frames = stage_frames(message, self._staging)
        nbytes = sum(map(_nbytes, frames))
        if self._shared is not None:
            frames = self._shared.pack(worker, frames)
        if not (isinstance(message, VersionMessage) and message.parcel == LAYER):
            self._send(worker, frames)
            return Sending(nbytes, lambda: False)
        tracked = [zmq.Frame(frame, track=True) for frame in frames]
        self._send(worker, tracked)
        tracker = zmq.MessageTracker(*tracked)
        return Sending(nbytes, lambda: tracker.done)

    def announce(self, worker: WorkerId, message: InputMessage, place: Place | None = None) -> None:
        """Announce an input whose tensors are sent separately."""
        self._send(worker, announcement_frames(self._worker, message, place))

    def release(self, worker: WorkerId) -> None:
        """Notify another worker that this one no longer reads from its memory."""
        self._send(worker, release_frames(self._worker))

    def _send(self, worker: WorkerId, frames: Sequence[Any]) -> None:
        if (largest := max(map(_nbytes, frames))) > MAX_FRAME_BYTES:
            raise TransportError(
                f"worker {worker}: expected tensors of at most {MAX_FRAME_BYTES} bytes on the way "
                f"to it, found one of {largest}; use smaller batches or layers"
            )
        outbox = self._outboxes.get(worker)
        if outbox is None:
            address = self._endpoints.workers[worker]
            outbox = connect_outbox(self._context, address, self._endpoints)
            self._outboxes[worker] = outbox
        outbox.send_multipart(frames, copy=False)

    def receive(self, timeout_seconds: float) -> Message | None:
        message = self.receive_any(timeout_seconds)
        if isinstance(message, Announcement):
            raise TransportError(f"{message.task}: its input comes by a way that is not open here")
        return None if isinstance(message, ReleaseMessage) else message

    def receive_any(self, timeout_seconds: float) -> Message | Announcement | ReleaseMessage | None:
        """Return the next message, including announcements and releases."""
        found = self._next(timeout_seconds)
        if found is None:
            return None
        frames: Sequence[Any] = [frame.buffer for frame in found]
        if self._shared is not None:
            frames = self._shared.unpack(frames)
        message = read_message(frames[0], frames[1:], self._staging)
        if self._shared is not None and isinstance(message, InputMessage):
            self._shared.give_back()  # its tensors have been copied
        return message

    def _next(self, timeout_seconds: float) -> Sequence[zmq.Frame] | None:
        """Return the frames of the next message; None if none arrives in time."""
        is_here = self._is_one_here()
        if not is_here and 0 < timeout_seconds < TICK_SECONDS:
            time.sleep(min(timeout_seconds, NAP_SECONDS))
            is_here = self._is_one_here()
        elif not is_here and timeout_seconds:
            ready = dict(self._poller.poll(int(timeout_seconds / TICK_SECONDS)))
            is_here = self._inbox in ready
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
        return self._inbox.recv_multipart(copy=False) if is_here else None

    def _is_one_here(self) -> bool:
        """Return True if a message is waiting; called after every block, as a poll costs more."""
        return bool(int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class SplitTransport(ABC):
    """Uses ZeroMQ for headers and layers, and another path for task tensors; a context manager.

    Args:
        inner: the stage's sockets, which are entered and exited with this transport.
        path: the other path, which is entered after the sockets and exited before them.
    """

    def __init__(self, inner: ZmqTransport, path: AbstractContextManager[Any]) -> None:
        self._inner = inner
        self._path = path
        self._stack = ExitStack()
        self._released: set[WorkerId] = set()
        """Workers that no longer read from this one's memory."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._inner)
            stack.enter_context(self._path)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        tensors = []
        is_sent = False
        if isinstance(message, InputMessage):
            tensors = [tensor for tensor in message.tensors if tensor is not None]
            is_sent = self._send_tensors(worker, message, tensors)
        if not is_sent:
            return self._inner.send(worker, message)
        return Sending(sum(tensor.nbytes for tensor in tensors), lambda: False)

    def receive(self, timeout_seconds: float) -> Message | None:
        message = self._inner.receive_any(timeout_seconds)
        if isinstance(message, ReleaseMessage):
            self._released.add(message.sender)
            return None
        if not isinstance(message, Announcement):
            return message
        tensors = self._receive_tensors(message)
        return InputMessage(message.task, message.upcoming, tensors, message.name)

    @abstractmethod
    def _send_tensors(
        self, worker: WorkerId, message: InputMessage, tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Announce an input and send its tensors. Return False if the path has no room for them."""

    @abstractmethod
    def _receive_tensors(self, message: Announcement) -> tuple[torch.Tensor | None, ...]: ...
