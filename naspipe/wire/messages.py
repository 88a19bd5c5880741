"""Messages between stages: a msgpack header, and one frame of bytes per tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import torch

from naspipe.config.errors import ConfigError, TransportError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Subnet, Version, WorkerId
from naspipe.config.partition import make_partition
from naspipe.config.wiring import CHAIN, InputName
from naspipe.engine.events import LAYER, PARCELS, Parcel, Planned, Task, TaskKind
from naspipe.machine.staging import HOST, Staging
from naspipe.wire.tensor_codec import decode, decode_into, describe, encode, fits

_INPUT, _ANNOUNCED, _VERSION, _SHARE = "input", "announced", "version", "contribution"
_CONTROL, _SUBNETS, _RELEASE = "control", "subnets", "release"
HOLD, STOP = "hold", "stop"


class InputMessage(NamedTuple):
    """The input of a task, and the tasks whose inputs the sender will send next."""

    task: Task
    upcoming: tuple[Task, ...]
    tensors: tuple[torch.Tensor | None, ...]
    name: InputName = CHAIN


class Place(NamedTuple):
    """The position of consecutive tensors in the sender's ring."""

    position: int
    handle: bytes = b""
    """The handle that opens the ring; sent only the first time."""


class Announcement(NamedTuple):
    """An :class:`InputMessage` whose tensors are sent separately; ``entries`` describe them."""

    sender: WorkerId
    task: Task
    upcoming: tuple[Task, ...]
    entries: tuple[Any, ...]
    name: InputName = CHAIN
    place: Place | None = None
    """The place of the tensors in a ring, if the path uses rings."""


class ReleaseMessage(NamedTuple):
    """Notification that a worker no longer reads from the receiver's memory."""

    sender: WorkerId


class ReceivedTensor(NamedTuple):
    """A tensor of a layer's state in its frame, or a plain value without a frame."""

    entry: Any
    frame: Any

    def kept(self) -> ReceivedTensor:
        """Return a copy in separate memory; a frame is valid only until the next message."""
        return self if self.frame is None else self._replace(frame=bytes(self.frame))

    def fits(self, target: torch.Tensor) -> bool:
        return fits(self.entry, target)

    def copy_to(self, target: torch.Tensor) -> None:
        decode_into(self.entry, self.frame, target)

    def value(self) -> Any:
        return self.entry if self.frame is None else decode(self.entry, self.frame)


class VersionMessage(NamedTuple):
    """A layer or a part of it from another stage: its version, and tensors by name.

    It is sent with tensors and plain values, and received with :class:`ReceivedTensor`.
    """

    layer: LayerId
    version: Version
    state: Sequence[tuple[str, Any]]
    parcel: Parcel = LAYER


class ContributionMessage(NamedTuple):
    """One stage's contribution to an exchange of a step: tensors and plain values by name."""

    exchange: str
    stream: StreamId
    sequence_id: SequenceId
    """The first sequence ID of the step."""
    sender: StageId
    values: Mapping[str, Any]


class ControlMessage(NamedTuple):
    """A message from the launcher: ``HOLD`` admissions, or ``STOP`` each stream at its cut."""

    what: str
    cuts: tuple[int, ...] = ()


class SubnetsMessage(NamedTuple):
    """A message from the launcher: proposed subnets in sequence order, starting at ``first``."""

    stream: StreamId
    first: int
    planned: tuple[Planned, ...]


LauncherMessage = ControlMessage | SubnetsMessage
StageMessage = InputMessage | VersionMessage | ContributionMessage
Message = StageMessage | LauncherMessage


def launcher_frames(message: LauncherMessage) -> list[Any]:
    if isinstance(message, ControlMessage):
        return [msgpack.packb([_CONTROL, message.what, message.cuts])]
    planned = [
        [each.subnet.chain, *each.partition, each.subnet.candidates] for each in message.planned
    ]
    return [msgpack.packb([_SUBNETS, [message.stream, message.first], planned])]


def stage_frames(message: StageMessage, staging: Staging = HOST) -> list[Any]:
    """Return the frames of a message from one stage to another.

    Frames share the memory of tensors in host memory; tensors on a device are copied before this
    function returns.
    """
    match message:
        case InputMessage(task, upcoming, tensors, name):
            encoded = [encode(tensor, staging) for tensor in tensors]
            staging.wait()
            tasks = [_plain(each) for each in (task, *upcoming)]
            header = msgpack.packb([_INPUT, [name, *tasks], [entry for entry, _ in encoded]])
            return [header, *(frame for _, frame in encoded)]
        case VersionMessage(layer, version, state, parcel):
            return _state_frames(_VERSION, [*layer, version, parcel], state, staging)
        case ContributionMessage():
            state = list(message.values.items())
            return _state_frames(_SHARE, list(message[:4]), state, staging)


def announcement_frames(
    sender: WorkerId, message: InputMessage, place: Place | None = None
) -> list[Any]:
    tasks = [_plain(task) for task in (message.task, *message.upcoming)]
    entries = [None if tensor is None else describe(tensor) for tensor in message.tensors]
    return [msgpack.packb([_ANNOUNCED, [sender, message.name, place, *tasks], entries])]


def release_frames(sender: WorkerId) -> list[Any]:
    return [msgpack.packb([_RELEASE, sender, None])]


def _state_frames(
    what: str, subject: list[Any], state: Sequence[tuple[str, Any]], staging: Staging
) -> list[Any]:
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
    return [msgpack.packb([what, subject, entries]), *frames]


def read_message(
    header: Any, frames: Sequence[Any], staging: Staging = HOST
) -> Message | Announcement | ReleaseMessage:
    try:
        what, subject, entries = msgpack.unpackb(header)
        if what == _INPUT:
            name, *tasks = subject
            task, *upcoming = map(_task, tasks)
            pairs = zip(entries, frames, strict=True)
            tensors = tuple(decode(entry, frame, staging) for entry, frame in pairs)
            return InputMessage(task, tuple(upcoming), tensors, InputName(_text("an input", name)))
        if what == _ANNOUNCED:
            sender, name, place, *tasks = subject
            task, *upcoming = map(_task, tasks)
            if place is not None:
                position, handle = place
                if type(position) is not int or position < 0 or not isinstance(handle, bytes):
                    raise ValueError(f"a place {place!r:.40}")
                place = Place(position, handle)
            described = (
                task,
                tuple(upcoming),
                tuple(entries),
                InputName(_text("an input", name)),
                place,
            )
            return Announcement(WorkerId(sender), *described)
        if what == _RELEASE and not frames:
            return ReleaseMessage(WorkerId(int(subject)))
        if what == _CONTROL and not frames:
            if subject not in (HOLD, STOP) or any(type(n) is not int or n < 0 for n in entries):
                raise ValueError(f"a control message {subject!r:.40}")
            return ControlMessage(subject, tuple(entries))
        if what == _SUBNETS and not frames:
            stream, first = map(int, subject)
            if any(len(used) not in (0, len(chain)) for chain, *_, used in entries):
                raise ValueError("a subnet whose candidates are not those of its blocks")
            planned = []
            for number, (chain, bounds, stages, candidates) in enumerate(entries, first):
                options, used = _numbers(chain), _numbers(candidates)
                subnet = Subnet(StreamId(stream), SequenceId(number), options, used)
                partition = make_partition(_numbers(bounds), _numbers(stages))
                planned.append(Planned(subnet, partition))
            return SubnetsMessage(StreamId(stream), first, tuple(planned))
        if what == _SHARE:
            exchange, *numbers = subject
            stream, sequence_id, stage = map(int, numbers)
            values = {key: tensor.value() for key, tensor in _read_state(entries, frames)}
            step = StreamId(stream), SequenceId(sequence_id), StageId(stage)
            return ContributionMessage(_text("an exchange", exchange), *step, values)
        if what == _VERSION:
            *layer, version, parcel = subject
            state = list(_read_state(entries, frames))
            if parcel not in PARCELS:
                raise ValueError(f"a parcel called {parcel!r:.40}")
            return VersionMessage(LayerId(*layer), Version(version), state, Parcel(parcel))
        raise ValueError(f"a message of kind {what!r:.40}")
    except (TypeError, ValueError, OverflowError, ConfigError, msgpack.UnpackException) as error:
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


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def _text(what: str, name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{what} called {name!r:.40}")
    return name


def _plain(task: Task) -> list[Any]:
    return [*task[:2], task.kind.value, task.stage, task.section]


def _task(values: Sequence[Any]) -> Task:
    stream, sequence_id, kind, stage, section = values
    return Task(
        StreamId(stream), SequenceId(sequence_id), TaskKind(kind), StageId(stage), int(section)
    )
