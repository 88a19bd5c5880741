"""Messages between a student and a teacher, and the student's sockets.

A message is a header in msgpack, followed by the bytes of its tensors::

    student  [hello, key]            teacher  [ready, class]  or  [no, why]
             [ask, number]                    [label, number, description] bytes
             [ask, number, descriptions] bytes ...            or  [no, why, number]  or  [who]

The key identifies the labels (``label_file.label_key``). A request is the number of a batch; if the
teacher does not have the data, the request also contains what the teacher takes of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import torch
import zmq

from naspipe.config.errors import TransportError
from naspipe.distill.teacher_card import TeacherCard
from naspipe.wire.tensor_codec import decode, encode

PROTOCOL = 1
MAX_NUMBER = 1 << 62
_MAX_HEADER = 1 << 16
_MAX_FIELDS = 4096


class Hello(NamedTuple):
    """A student states which labels it wants."""

    key: Mapping[str, Any]


class LabelRequest(NamedTuple):
    """A student requests the label of a batch."""

    number: int
    fields: tuple[torch.Tensor, ...] = ()
    """The fields that the teacher takes from the batch, if it does not have the data."""


class Ready(NamedTuple):
    """A teacher has prepared its network and its data."""

    numeric_class: str


class LabelAnswer(NamedTuple):
    """A label."""

    number: int
    label: torch.Tensor


class Stranger(NamedTuple):
    """A teacher does not know the student, because its greeting was lost or has been forgotten."""


class No(NamedTuple):
    """A teacher refuses a batch, or everything if there is no number."""

    why: str
    number: int | None = None


TeacherMessage = Ready | LabelAnswer | No | Stranger


def student_frames(message: Hello | LabelRequest) -> list[Any]:
    if isinstance(message, Hello):
        return [msgpack.packb(["hello", PROTOCOL, dict(message.key)])]
    if not message.fields:
        return [msgpack.packb(["ask", message.number])]
    encoded = [encode(each) for each in message.fields]
    header = ["ask", message.number, [entry for entry, _ in encoded]]
    return [msgpack.packb(header), *(raw for _, raw in encoded)]


def teacher_frames(message: TeacherMessage) -> list[Any]:
    if isinstance(message, Stranger):
        return [msgpack.packb(["who"])]
    if isinstance(message, Ready):
        return [msgpack.packb(["ready", message.numeric_class])]
    if isinstance(message, No):
        return [msgpack.packb(["no", message.why[:400], message.number])]
    entry, raw = encode(message.label)
    return [msgpack.packb(["label", message.number, entry]), raw]


def read_student(frames: Sequence[Any]) -> Hello | LabelRequest:
    """Decode a message from a student.

    Raises:
        TransportError: if the message is invalid.
    """
    kind, *rest = _header(frames)
    match kind, rest:
        case "hello", [int(version), dict(key)] if version == PROTOCOL and len(frames) == 1:
            if all(isinstance(name, str) for name in key):
                return Hello(key)
        case "ask", [int(number)] if len(frames) == 1:
            return LabelRequest(_number(number))
        case "ask", [int(number), list(entries)] if len(entries) == len(frames) - 1:
            if len(entries) <= _MAX_FIELDS:
                pairs = zip(entries, frames[1:], strict=True)
                return LabelRequest(_number(number), tuple(_tensor(*pair) for pair in pairs))
    raise TransportError(f"expected a message of a student, found {kind!r:.80}")


def read_teacher(frames: Sequence[Any]) -> TeacherMessage:
    """Decode a message from a teacher.

    Raises:
        TransportError: if the message is invalid.
    """
    kind, *rest = _header(frames)
    match kind, rest:
        case "ready", [str(found)] if len(frames) == 1:
            return Ready(found)
        case "who", [] if len(frames) == 1:
            return Stranger()
        case "no", [str(why), number] if len(frames) == 1:
            return No(" ".join(why.split())[:400], None if number is None else _number(number))
        case "label", [int(number), entry] if len(frames) == 2:
            return LabelAnswer(_number(number), _tensor(entry, frames[1]))
    raise TransportError(f"expected a message of a teacher, found {kind!r:.80}")


def _header(frames: Sequence[Any]) -> list[Any]:
    try:
        if not frames or len(frames[0]) > _MAX_HEADER:
            raise ValueError(f"{len(frames)} frames")
        found = msgpack.unpackb(frames[0])
        if not isinstance(found, list) or not found:
            raise ValueError(f"a {type(found).__name__}")
        return found
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        raise TransportError(f"a message about labels cannot be read: {error!s:.200}") from error


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise TransportError(f"expected the number of a batch, found {value!r:.80}")
    return value


def _tensor(entry: Any, frame: Any) -> torch.Tensor:
    found = decode(entry, frame)
    if found is None:
        raise TransportError("expected a tensor, found none")
    if found.requires_grad:
        raise TransportError("expected a tensor without a gradient, found one with it")
    return found


_MAX_FRAME_BYTES = 1 << 30
_MOST_LINES = 512
_MOST_AT_ONCE = 64
"""Messages of one teacher that are read before those of other teachers."""


@dataclass(slots=True)
class _Line:
    """A socket, and the requests sent over it that have not been answered yet."""

    socket: zmq.Socket[Any]
    is_greeting: bool = False
    asked: Counter[int] = field(default_factory=Counter)

    def check(self, message: TeacherMessage) -> None:
        """Check that a message answers a request.

        Raises:
            TransportError: if it does not.
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
            self.asked += Counter()  # removes numbers without open requests


class TeacherLines:
    """Sockets by the name of their teacher; belongs to one thread.

    Args:
        others: further file descriptors that end a wait.
    """

    def __init__(self, *others: Callable[[], int]) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._poller = zmq.Poller()
        for fileno in others:
            self._poller.register(fileno(), zmq.POLLIN)
        self._lines: dict[str, _Line] = {}
        self._ready: dict[Any, int] = {}

    def open(self, card: TeacherCard) -> None:
        """Open a line to a teacher, which need not be running yet.

        Raises:
            TransportError: for an invalid address or key.
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
        """Close a line; messages that were not read are lost."""
        socket = self._lines.pop(name).socket
        self._poller.unregister(socket)
        socket.close()

    def wait(self, milliseconds: int) -> set[int]:
        """Wait for any message, and return the file descriptors of ``others`` that are ready."""
        self._ready = dict(self._poller.poll(milliseconds))
        return {each for each in self._ready if isinstance(each, int)}

    def send(self, name: str, message: Hello | LabelRequest) -> None:
        line = self._lines[name]
        if isinstance(message, Hello):
            line.is_greeting = True
        else:
            line.asked[message.number] += 1
        line.socket.send_multipart(student_frames(message))

    def heard(self) -> Iterator[tuple[str, TeacherMessage | TransportError]]:
        """Yield messages that arrived during the last wait, or an error for each invalid one."""
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
        self._context.destroy(linger=0)
