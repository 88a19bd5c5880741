"""What stages say to one another: msgpack headers, and one frame of bytes per tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack
import torch

from naspipe.core.errors import TransportError
from naspipe.core.ids import LayerId, PassId, SequenceId, StageId, StreamId, Version
from naspipe.core.task import Task, TaskKind
from naspipe.runtime.tensor_codec import decode, decode_into, encode

_INPUT, _VERSION = "input", "version"


class InputMessage(NamedTuple):
    """The input of a task, and tasks whose inputs the sender will hand over next."""

    task: Task
    upcoming: tuple[Task, ...]
    tensors: tuple[torch.Tensor | None, ...]


class ReceivedTensor(NamedTuple):
    """One tensor (or plain value, without a frame) of a layer's state, still in its frame."""

    entry: Any
    frame: Any

    def copy_to(self, target: torch.Tensor) -> None:
        """See :class:`naspipe.runtime.layer_store.Received`."""
        decode_into(self.entry, self.frame, target)

    def value(self) -> Any:
        """See :class:`naspipe.runtime.layer_store.Received`."""
        return self.entry if self.frame is None else decode(self.entry, self.frame)


class VersionMessage(NamedTuple):
    """A layer that another stage hands over: its newest version and its state by name."""

    layer: LayerId
    version: Version
    state: list[tuple[str, ReceivedTensor]]


Message = InputMessage | VersionMessage


def input_frames(
    receiver: Task, upcoming: Sequence[Task], tensors: Sequence[torch.Tensor | None]
) -> list[Any]:
    """The frames of an :class:`InputMessage`; they share the tensors' memory."""
    entries, frames = zip(*map(encode, tensors), strict=True) if tensors else ((), ())
    tasks = [_plain(task) for task in (receiver, *upcoming)]
    return [msgpack.packb([_INPUT, tasks, entries]), *frames]


def version_frames(layer: LayerId, version: Version, state: Sequence[tuple[str, Any]]) -> list[Any]:
    """The frames of a :class:`VersionMessage`; they share the tensors' memory."""
    entries: list[Any] = []
    frames: list[memoryview] = []
    for name, value in state:
        if isinstance(value, torch.Tensor):
            entry, frame = encode(value)
            entries.append([name, True, entry])
            frames.append(frame)
        else:
            entries.append([name, False, value])
    return [msgpack.packb([_VERSION, [*layer, version], entries]), *frames]


def read_message(header: Any, frames: Sequence[Any]) -> Message:
    """Rebuild a message.

    Raises:
        TransportError: when it is not one that a stage sends.
    """
    try:
        what, subject, entries = msgpack.unpackb(header)
        if what == _INPUT:
            task, *upcoming = map(_task, subject)
            pairs = zip(entries, frames, strict=True)
            tensors = tuple(decode(entry, frame) for entry, frame in pairs)
            return InputMessage(task, tuple(upcoming), tensors)
        if what != _VERSION:
            raise ValueError(f"a message of kind {what!r:.40}")
        stream, block, candidate, version = subject
        state = list(_read_state(entries, frames))
        return VersionMessage(LayerId(stream, block, candidate), Version(version), state)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a message header cannot be read: {error}") from error


def _read_state(
    entries: Sequence[Any], frames: Sequence[Any]
) -> Iterator[tuple[str, ReceivedTensor]]:
    rest = list(reversed(frames))
    for name, is_tensor, entry in entries:
        if is_tensor and not rest:
            raise ValueError(f"no frame for {name!r:.80}")
        yield name, ReceivedTensor(entry, rest.pop() if is_tensor else None)
    if rest:
        raise ValueError(f"{len(rest)} frames too many")


def _plain(task: Task) -> list[Any]:
    return [*task[:3], task.kind.value, task.stage]


def _task(values: Sequence[Any]) -> Task:
    stream, sequence_id, pass_id, kind, stage = values
    return Task(
        StreamId(stream), SequenceId(sequence_id), PassId(pass_id), TaskKind(kind), StageId(stage)
    )
