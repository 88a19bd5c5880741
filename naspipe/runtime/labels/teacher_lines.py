"""A socket to each teacher, and what is said over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import zmq

from naspipe.core.errors import TransportError
from naspipe.runtime.labels.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    read_teacher,
    student_frames,
)
from naspipe.runtime.registries.teacher_card import TeacherCard

_MAX_FRAME_BYTES = 1 << 30


class TeacherLines:
    """Sockets by the name of their teacher; belongs to one thread.

    Args:
        others: what a wait ends with, too, by file descriptor.
    """

    def __init__(self, *others: Callable[[], int]) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._poller = zmq.Poller()
        for fileno in others:
            self._poller.register(fileno(), zmq.POLLIN)
        self._sockets: dict[str, zmq.Socket[Any]] = {}
        self._ready: dict[Any, int] = {}

    def open(self, card: TeacherCard) -> None:
        """A line to a teacher; whether it is there shows when it answers.

        Raises:
            TransportError: for an address or a key that is none.
        """
        socket: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set_hwm(0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        try:
            if card.public_key:
                socket.curve_serverkey = card.public_key.encode("ascii")
                socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.connect(card.address)
        except (zmq.ZMQError, UnicodeEncodeError) as error:
            socket.close()
            raise TransportError(
                f"expected an address and a key, found {card.address:.80}: {error}"
            ) from error
        self._poller.register(socket, zmq.POLLIN)
        self._sockets[card.name] = socket

    def close(self, name: str) -> None:
        """End a line; what was said over it and not heard is lost."""
        socket = self._sockets.pop(name)
        self._poller.unregister(socket)
        socket.close()

    def wait(self, milliseconds: int) -> set[int]:
        """Wait for anything; the file descriptors of others that are ready."""
        self._ready = dict(self._poller.poll(milliseconds))
        return {each for each in self._ready if isinstance(each, int)}

    def send(self, name: str, message: Hello | LabelRequest) -> None:
        """Say something to a teacher."""
        self._sockets[name].send_multipart(student_frames(message))

    def heard(self) -> Iterator[tuple[str, Ready | LabelAnswer | No | TransportError]]:
        """What teachers have said since the last wait began, or why it cannot be read."""
        for name in [name for name, socket in self._sockets.items() if socket in self._ready]:
            while name in self._sockets and self._sockets[name].poll(0):
                frames = self._sockets[name].recv_multipart()
                try:
                    yield name, read_teacher(frames)
                except TransportError as error:
                    yield name, error

    def end(self) -> None:
        """Close everything."""
        self._context.destroy(linger=0)
