"""Events that a driver reports to a stage's controller, each with the driver's time stamp.

Times are nanoseconds of one monotonic clock per machine (or of the simulator).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType

from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Subnet, Version
from naspipe.config.partition import Partition
from naspipe.config.wiring import CHAIN, InputName


class TaskKind(Enum):
    """Direction of a task; the value is its letter in logs."""

    FORWARD = "F"
    BACKWARD = "B"


class Task(NamedTuple):
    """One subnet's forward or backward on one stage; prints as ``0.12F@3``, or ``0.12B1@3``.

    The numbers are stream and sequence ID; ``@3`` is the stage. A chain in which losses arise
    before its end has one backward for each loss; ``B1`` is that of the last one before the end.
    """

    stream: StreamId
    sequence_id: SequenceId
    kind: TaskKind
    stage: StageId
    section: int = 0
    """For a backward: the part of the chain that it goes through, counted from the chain's end."""

    def at(self, stage: StageId) -> Task:
        """Return the task of the same pass and direction on another stage."""
        return self._replace(stage=stage)

    def __str__(self) -> str:
        section = self.section or ""
        return f"{self.stream}.{self.sequence_id}{self.kind.value}{section}@{self.stage}"


_TEXT = re.compile(r"([0-9]{1,99})\.([0-9]{1,99})(F|B(?:[1-9][0-9]{0,8})?)@([0-9]{1,99})")


def parse_task(text: str) -> Task:
    """Parse a task's text form."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConfigError(f"expected a task such as 0.12F@3, found {text!r}")
    stream, sequence_id, kind, stage = match.groups()
    return Task(
        StreamId(int(stream)),
        SequenceId(int(sequence_id)),
        TaskKind(kind[0]),
        StageId(int(stage)),
        int(kind[1:] or 0),
    )


Parcel = NewType("Parcel", str)
"""Plain text, so that logs and messages can hold it unchanged."""

LAYER = Parcel("layer")
"""The complete layer: parameters, buffers, optimizer state. From now on the receiver writes it."""
STATE = Parcel("state")
"""The same, if the sender's own passes continue to read the layer: it keeps a copy."""
COPY = Parcel("copy")
"""What a forward needs, for readers in another group. The sender keeps the layer."""
SUM = Parcel("sum")
"""The gradients of a step's passes so far. The sender's copy of the layer becomes invalid."""
BUFFERS = Parcel("buffers")
"""The buffers that the forwards of a step left so far, for the next pass of the step."""

PARCELS = (LAYER, STATE, COPY, SUM, BUFFERS)


class Priorities(NamedTuple):
    """The urgency of each access of a subnet, by block of the chain; higher runs sooner."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    write: tuple[int, ...] = ()
    """Empty if every WRITE precedes everything else."""


class Planned(NamedTuple):
    """A subnet with everything that each stage receives when it is admitted: the subnet, the stage
    of each of its blocks, and the urgency of each of its accesses.
    """

    subnet: Subnet
    partition: Partition
    priorities: Priorities | None = None
    """None if the dispatch order uses none."""


@dataclass(frozen=True, slots=True)
class SubnetAdmitted:
    """A subnet may start. Sent to every stage, in sequence order without gaps per stream.

    ``priorities`` is None if the dispatch order uses none. A subnet that is not trained has a
    forward only, and its layers are frozen.
    """

    time_ns: int
    subnet: Subnet
    partition: Partition
    priorities: Priorities | None = None
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class InputArrived:
    """The input ``name`` of ``task`` (activations, gradients, a field) has arrived on its stage.

    ``upcoming`` names tasks of this stage whose inputs the sender expects to send next.
    """

    time_ns: int
    task: Task
    upcoming: tuple[Task, ...] = ()
    name: InputName = CHAIN


@dataclass(frozen=True, slots=True)
class BlockFinished:
    """One block of the running task was computed, from ``start_ns`` to ``time_ns``."""

    time_ns: int
    task: Task
    block: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class WriteFinished:
    """A WRITE was applied, from ``start_ns`` to ``time_ns``: version ``sequence_id`` exists.

    The first ``owed_ns`` of that time were spent on gradients that split backwards had left.
    """

    time_ns: int
    layer: LayerId
    sequence_id: SequenceId
    start_ns: int
    digest: str = ""
    owed_ns: int = 0


@dataclass(frozen=True, slots=True)
class ContributionArrived:
    """A stage's contribution to an exchange has arrived; ``sequence_id`` is the step's first."""

    time_ns: int
    exchange: str
    stream: StreamId
    sequence_id: SequenceId
    sender: StageId


@dataclass(frozen=True, slots=True)
class VersionArrived:
    """Another stage pushed a layer or a part of it; see
    :class:`naspipe.engine.commands.PushVersion`.

    If the parcel is a layer or a copy, ``version`` is the newest and exists here.
    """

    time_ns: int
    layer: LayerId
    version: Version
    parcel: Parcel = LAYER


@dataclass(frozen=True, slots=True)
class LayerLoaded:
    """A layer is now on the device."""

    time_ns: int
    layer: LayerId


@dataclass(frozen=True, slots=True)
class LayerSaved:
    """Host memory holds what the layer's device memory held when the save began."""

    time_ns: int
    layer: LayerId


@dataclass(frozen=True, slots=True)
class CutAdmitted:
    """A checkpoint is inserted into a stream: before subnet ``cut``, after all earlier ones.

    Once the earlier ones are done, it may wait for idle time until ``patience`` later ones are
    done.
    """

    time_ns: int
    stream: StreamId
    cut: SequenceId
    patience: int = 0


@dataclass(frozen=True, slots=True)
class StageIdle:
    """Nothing can be computed at present, so the stage can run idle work."""

    time_ns: int


class KeptLayer(NamedTuple):
    """A layer as a checkpoint holds it.

    ``versions`` are those that may still be read, oldest first. Any stage can read the layer from
    the checkpoint; ``keeper`` is the stage that carries it over to the next checkpoints until it is
    used.
    """

    layer: LayerId
    versions: tuple[Version, ...]
    keeper: StageId


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """A stream continues from a checkpoint; sent before any of its subnets is admitted."""

    time_ns: int
    stream: StreamId
    first: SequenceId
    layers: tuple[KeptLayer, ...]


Event = (
    SubnetAdmitted
    | InputArrived
    | BlockFinished
    | WriteFinished
    | ContributionArrived
    | VersionArrived
    | LayerLoaded
    | LayerSaved
    | CutAdmitted
    | StageIdle
    | StreamResumed
)
