"""What a driver tells a stage's controller. Every event carries the driver's time stamp.

Times are nanoseconds of one monotonic clock per machine (or of the simulator).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Subnet, Version
from naspipe.config.partition import Partition
from naspipe.config.wiring import CHAIN, InputName
from naspipe.core.parcels import LAYER, Parcel
from naspipe.core.task import Task


class Priorities(NamedTuple):
    """How urgent each access of a subnet is, by block of the chain; more is sooner."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    write: tuple[int, ...] = ()
    """Empty where each WRITE goes before all else."""


class Planned(NamedTuple):
    """A subnet with all that every stage is told when it is admitted: what runs, where each block
    of it runs, and how urgent each of its accesses is."""

    subnet: Subnet
    partition: Partition
    priorities: Priorities | None = None
    """None where the dispatch order asks for none."""


@dataclass(frozen=True, slots=True)
class SubnetAdmitted:
    """A subnet may start. Told to every stage, in sequence order without gaps per stream.

    ``priorities`` is None where the dispatch order asks for none. A subnet that is not trained
    has a forward only, and its layers are frozen.
    """

    time_ns: int
    subnet: Subnet
    partition: Partition
    priorities: Priorities | None = None
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class InputArrived:
    """The input ``name`` of ``task`` (activations, gradients, a field) is on its stage.

    ``upcoming`` names tasks of this stage whose inputs the sender expects to hand over next.
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

    For the first ``owed_ns`` of that time it computed gradients that split backwards had left.
    """

    time_ns: int
    layer: LayerId
    sequence_id: SequenceId
    start_ns: int
    digest: str = ""
    owed_ns: int = 0


@dataclass(frozen=True, slots=True)
class ContributionArrived:
    """What a stage contributes to an exchange is here; ``sequence_id`` is the step's first."""

    time_ns: int
    exchange: str
    stream: StreamId
    sequence_id: SequenceId
    sender: StageId


@dataclass(frozen=True, slots=True)
class VersionArrived:
    """Another stage pushed (a part of) a layer; see :class:`naspipe.core.commands.PushVersion`.

    With a layer or a copy, ``version`` is the newest and exists here.
    """

    time_ns: int
    layer: LayerId
    version: Version
    parcel: Parcel = LAYER


@dataclass(frozen=True, slots=True)
class LayerLoaded:
    """A layer is on the device now."""

    time_ns: int
    layer: LayerId


@dataclass(frozen=True, slots=True)
class LayerSaved:
    """Host memory holds what the layer's device memory held when the save began."""

    time_ns: int
    layer: LayerId


@dataclass(frozen=True, slots=True)
class CutAdmitted:
    """A checkpoint takes its place in a stream: before subnet ``cut``, behind all earlier ones.

    Once the earlier ones are done, it may wait for idle time until ``patience`` later ones are.
    """

    time_ns: int
    stream: StreamId
    cut: SequenceId
    patience: int = 0


@dataclass(frozen=True, slots=True)
class StageIdle:
    """Nothing can be computed at present: time for what has to be done some time."""

    time_ns: int


class KeptLayer(NamedTuple):
    """A layer as a checkpoint holds it.

    ``versions`` are those that may still be read, oldest first. Any stage can read it there;
    ``keeper`` is the stage that hands it on to the next checkpoints until somebody uses it.
    """

    layer: LayerId
    versions: tuple[Version, ...]
    keeper: StageId


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """A stream goes on behind a checkpoint; told before any of its subnets is admitted."""

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
