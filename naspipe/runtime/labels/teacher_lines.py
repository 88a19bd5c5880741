"""A socket to each teacher, and what is said over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq

from naspipe.config.errors import TransportError
from naspipe.runtime.labels.label_messages import (
    Hello,
    LabelRequest,
    Ready,
    Stranger,
    TeacherMessage,
    read_teacher,
    student_frames,
)
from naspipe.runtime.registries.teacher_card import TeacherCard

_MAX_FRAME_BYTES = 1 << 30
_MOST_LINES = 512
_MOST_AT_ONCE = 64
"""Messages of one teacher that are heard before others have their turn."""


@dataclass(slots=True)
class _Line:
    """A socket, and what was said over it that is not answered yet."""

    socket: zmq.Socket[Any]
    is_greeting: bool = False
    asked: Counter[int] = field(default_factory=Counter)

    def said(self, message: Hello | LabelRequest) -> None:
        if isinstance(message, Hello):
            self.is_greeting = True
        else:
            self.asked[message.number] += 1

    def check(self, message: TeacherMessage) -> None:
        """What comes must answer something.

        Raises:
            TransportError: when it does not.
        """
        if isinstance(message, Ready):
            if not self.is_greeting:
                raise TransportError("expected labels, found another greeting")
            self.is_greeting = False
        elif isinstance(message, Stranger):
            if not self.asked:
                raise TransportError("expected an answer to something, found a stranger")
        elif message.number is not None:
            number = message.number
            if not self.asked[number]:
                raise TransportError(
                    f"expected labels that it was asked for, found an answer for batch {number}"
                )
            self.asked[number] -= 1
            self.asked += Counter()  # without those that are answered


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
        self._lines: dict[str, _Line] = {}
        self._ready: dict[Any, int] = {}

    def open(self, card: TeacherCard) -> None:
        """A line to a teacher; whether it is there shows when it answers.

        Raises:
            TransportError: for an address or a key that is none.
        """
        if len(self._lines) >= _MOST_LINES:
            raise TransportError(f"expected {_MOST_LINES} teachers at most")
        socket: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        try:
            socket.linger = 0
            socket.set_hwm(0)
            socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
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
        self._lines[card.name] = _Line(socket)

    def close(self, name: str) -> None:
        """End a line; what was said over it and not heard is lost."""
        socket = self._lines.pop(name).socket
        self._poller.unregister(socket)
        socket.close()

    def wait(self, milliseconds: int) -> set[int]:
        """Wait for anything; the file descriptors of others that are ready."""
        self._ready = dict(self._poller.poll(milliseconds))
        return {each for each in self._ready if isinstance(each, int)}

    def send(self, name: str, message: Hello | LabelRequest) -> None:
        """Say something to a teacher."""
        line = self._lines[name]
        line.said(message)
        line.socket.send_multipart(student_frames(message))

    def heard(self) -> Iterator[tuple[str, TeacherMessage | TransportError]]:
        """What teachers have said since the last wait began, or why it cannot be taken."""
        for name in [name for name, line in self._lines.items() if line.socket in self._ready]:
            for _ in range(_MOST_AT_ONCE):
                line = self._lines.get(name)
                if line is None or not line.socket.poll(0):
                    break
                try:
                    message = read_teacher(line.socket.recv_multipart())
                    line.check(message)
                except TransportError as error:
                    yield name, error
                else:
                    yield name, message

    def end(self) -> None:
        """Close everything."""
        self._context.destroy(linger=0)
