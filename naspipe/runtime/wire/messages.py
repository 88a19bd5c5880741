"""What stages say to one another: msgpack headers, and one frame of bytes per tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import torch

from naspipe.core.errors import ConfigError, TransportError
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.core.partition import make_partition
from naspipe.core.planned import Planned
from naspipe.core.subnet import Subnet
from naspipe.core.task import Task, TaskKind
from naspipe.runtime.devices.staging import HOST, Staging
from naspipe.runtime.wire.tensor_codec import decode, decode_into, describe, encode

_INPUT, _ANNOUNCED, _VERSION, _NORMS = "input", "announced", "version", "norms"
_CONTROL, _SUBNETS = "control", "subnets"
HOLD, STOP = "hold", "stop"


class InputMessage(NamedTuple):
    """The input of a task, and tasks whose inputs the sender will hand over next."""

    task: Task
    upcoming: tuple[Task, ...]
    tensors: tuple[torch.Tensor | None, ...]


class Announcement(NamedTuple):
    """An :class:`InputMessage` whose tensors take another way; their header entries."""

    sender: StageId
    task: Task
    upcoming: tuple[Task, ...]
    entries: tuple[Any, ...]


class ReceivedTensor(NamedTuple):
    """One tensor (or plain value, without a frame) of a layer's state, still in its frame."""

    entry: Any
    frame: Any

    def copy_to(self, target: torch.Tensor) -> None:
        """See :class:`naspipe.runtime.layers.layer_store.Received`."""
        decode_into(self.entry, self.frame, target)

    def value(self) -> Any:
        """See :class:`naspipe.runtime.layers.layer_store.Received`."""
        return self.entry if self.frame is None else decode(self.entry, self.frame)


class VersionMessage(NamedTuple):
    """A layer that another stage hands over: its newest version and its state by name."""

    layer: LayerId
    version: Version
    state: list[tuple[str, ReceivedTensor]]


class NormsMessage(NamedTuple):
    """The norms of a step's gradients on one stage, by block and candidate."""

    stream: StreamId
    sequence_id: SequenceId
    """The step's first."""
    stage: StageId
    norms: Mapping[tuple[int, int], float]


class ControlMessage(NamedTuple):
    """From the launcher: ``HOLD`` admissions, or ``STOP`` each stream at its cut."""

    what: str
    cuts: tuple[int, ...] = ()


class SubnetsMessage(NamedTuple):
    """From the launcher: what a strategy proposed, in sequence order, from ``first`` on."""

    stream: StreamId
    first: int
    planned: tuple[Planned, ...]


LauncherMessage = ControlMessage | SubnetsMessage
Message = InputMessage | VersionMessage | NormsMessage | LauncherMessage


def launcher_frames(message: LauncherMessage) -> list[Any]:
    """The one frame of what the launcher has to say."""
    if isinstance(message, ControlMessage):
        return [msgpack.packb([_CONTROL, message.what, message.cuts])]
    planned = [[each.subnet.chain, each.partition.bounds] for each in message.planned]
    return [msgpack.packb([_SUBNETS, [message.stream, message.first], planned])]


def norms_frames(message: NormsMessage) -> list[Any]:
    """The one frame of a :class:`NormsMessage`; every bit of each norm is in it."""
    norms = [[*layer, norm] for layer, norm in message.norms.items()]
    return [msgpack.packb([_NORMS, message[:3], norms])]


def input_frames(
    receiver: Task,
    upcoming: Sequence[Task],
    tensors: Sequence[torch.Tensor | None],
    staging: Staging = HOST,
) -> list[Any]:
    """The frames of an :class:`InputMessage`.

    They share the memory of tensors in host memory; from a device they are complete copies.
    """
    encoded = [encode(tensor, staging) for tensor in tensors]
    staging.wait()
    tasks = [_plain(task) for task in (receiver, *upcoming)]
    header = msgpack.packb([_INPUT, tasks, [entry for entry, _ in encoded]])
    return [header, *(frame for _, frame in encoded)]


def announcement_frames(
    sender: StageId,
    receiver: Task,
    upcoming: Sequence[Task],
    tensors: Sequence[torch.Tensor | None],
) -> list[Any]:
    """The one frame of an :class:`Announcement`."""
    tasks = [_plain(task) for task in (receiver, *upcoming)]
    entries = [None if tensor is None else describe(tensor) for tensor in tensors]
    return [msgpack.packb([_ANNOUNCED, [sender, *tasks], entries])]


def version_frames(
    layer: LayerId, version: Version, state: Sequence[tuple[str, Any]], staging: Staging = HOST
) -> list[Any]:
    """The frames of a :class:`VersionMessage`; see :func:`input_frames` for their memory."""
    entries: list[Any] = []
    frames: list[memoryview] = []
    for name, value in state:
        if isinstance(value, torch.Tensor):
            entry, frame = encode(value, staging)
            entries.append([name, True, entry])
            frames.append(frame)
        else:
            entries.append([name, False, value])
    staging.wait()
    return [msgpack.packb([_VERSION, [*layer, version], entries]), *frames]


def read_message(
    header: Any, frames: Sequence[Any], staging: Staging = HOST
) -> Message | Announcement:
    """Rebuild a message.

    Raises:
        TransportError: when it is not one that a stage sends.
    """
    try:
        what, subject, entries = msgpack.unpackb(header)
        if what == _INPUT:
            task, *upcoming = map(_task, subject)
            pairs = zip(entries, frames, strict=True)
            tensors = tuple(decode(entry, frame, staging) for entry, frame in pairs)
            return InputMessage(task, tuple(upcoming), tensors)
        if what == _ANNOUNCED:
            sender, *tasks = subject
            task, *upcoming = map(_task, tasks)
            return Announcement(StageId(sender), task, tuple(upcoming), tuple(entries))
        if what == _CONTROL and not frames:
            return _control(subject, entries)
        if what == _SUBNETS and not frames:
            stream, first = map(int, subject)
            return _subnets(stream, first, entries)
        if what == _NORMS and not frames:
            return _norms(subject, entries)
        if what != _VERSION:
            raise ValueError(f"a message of kind {what!r:.40}")
        stream, block, candidate, version = subject
        state = list(_read_state(entries, frames))
        return VersionMessage(LayerId(stream, block, candidate), Version(version), state)
    except (TypeError, ValueError, ConfigError, msgpack.UnpackException) as error:
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


def _control(what: Any, cuts: Any) -> ControlMessage:
    if what not in (HOLD, STOP) or any(type(cut) is not int or cut < 0 for cut in cuts):
        raise ValueError(f"a control message {what!r:.40}")
    return ControlMessage(what, tuple(cuts))


def _subnets(stream: int, first: int, entries: Sequence[Any]) -> SubnetsMessage:
    planned = tuple(
        Planned(
            Subnet(StreamId(stream), SequenceId(first + place), tuple(map(int, chain))),
            make_partition(tuple(map(int, bounds))),
        )
        for place, (chain, bounds) in enumerate(entries)
    )
    return SubnetsMessage(StreamId(stream), first, planned)


def _norms(subject: Any, entries: Any) -> NormsMessage:
    stream, sequence_id, stage = map(int, subject)
    norms = {(int(block), int(candidate)): float(norm) for block, candidate, norm in entries}
    return NormsMessage(StreamId(stream), SequenceId(sequence_id), StageId(stage), norms)


def _plain(task: Task) -> list[Any]:
    return [*task[:2], task.kind.value, task.stage]


def _task(values: Sequence[Any]) -> Task:
    stream, sequence_id, kind, stage = values
    return Task(StreamId(stream), SequenceId(sequence_id), TaskKind(kind), StageId(stage))
