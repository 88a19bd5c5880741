"""What a student and a teacher say to each other: msgpack, and the bytes of tensors behind it.

    student  [hello, key]            teacher  [ready, class]  or  [no, why]
             [ask, number]                    [label, number, description] bytes
             [ask, number, descriptions] bytes ...            or  [no, why, number]  or  [who]

The key says whose labels these are (``label_file.label_key``). A request is the number of a batch;
where the teacher has not the data, what it takes of the batch comes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import torch

from naspipe.config.errors import TransportError
from naspipe.runtime.wire.tensor_codec import decode, encode

PROTOCOL = 1
MAX_NUMBER = 1 << 62
_MAX_HEADER = 1 << 16
_MAX_FIELDS = 4096


class Hello(NamedTuple):
    """A student says whose labels it wants."""

    key: Mapping[str, Any]


class LabelRequest(NamedTuple):
    """It asks for one."""

    number: int
    fields: tuple[torch.Tensor, ...] = ()
    """What the teacher takes of the batch, where it has not the data."""


class Ready(NamedTuple):
    """A teacher has made its network and its data."""

    numeric_class: str


class LabelAnswer(NamedTuple):
    """A label."""

    number: int
    label: torch.Tensor


class Stranger(NamedTuple):
    """A teacher does not know who asks: a greeting was lost, or is long ago."""


class No(NamedTuple):
    """A teacher will not: at all, or this batch."""

    why: str
    number: int | None = None


TeacherMessage = Ready | LabelAnswer | No | Stranger


def student_frames(message: Hello | LabelRequest) -> list[Any]:
    """What a student sends."""
    if isinstance(message, Hello):
        return [msgpack.packb(["hello", PROTOCOL, dict(message.key)])]
    if not message.fields:
        return [msgpack.packb(["ask", message.number])]
    encoded = [encode(each) for each in message.fields]
    header = ["ask", message.number, [entry for entry, _ in encoded]]
    return [msgpack.packb(header), *(raw for _, raw in encoded)]


def teacher_frames(message: TeacherMessage) -> list[Any]:
    """What a teacher sends."""
    if isinstance(message, Stranger):
        return [msgpack.packb(["who"])]
    if isinstance(message, Ready):
        return [msgpack.packb(["ready", message.numeric_class])]
    if isinstance(message, No):
        return [msgpack.packb(["no", message.why[:400], message.number])]
    entry, raw = encode(message.label)
    return [msgpack.packb(["label", message.number, entry]), raw]


def read_student(frames: Sequence[Any]) -> Hello | LabelRequest:
    """What a student sent.

    Raises:
        TransportError: when it is nothing that a student says.
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
    raise TransportError(f"expected what a student says, found {kind!r:.80}")


def read_teacher(frames: Sequence[Any]) -> TeacherMessage:
    """What a teacher sent.

    Raises:
        TransportError: when it is nothing that a teacher says.
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
    raise TransportError(f"expected what a teacher says, found {kind!r:.80}")


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
