"""What a stage's controller asks its driver to do, to be carried out in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.access import Access
from naspipe.core.ids import LayerId, SequenceId, StreamId, Version
from naspipe.core.task import Task


@dataclass(frozen=True, slots=True)
class RunTask:
    """Compute a run of blocks of one task; each block is told as ``BlockFinished``.

    ``reads`` names the layer and the version of each block in execution order: rising
    blocks in a forward, falling blocks in a backward. A stage has one run at a time.
    """

    task: Task
    reads: tuple[tuple[LayerId, Version], ...]


@dataclass(frozen=True, slots=True)
class WriteLayer:
    """Apply the gradient of ``sequence_id`` to version ``base``, making version ``sequence_id``.

    ``keeps_base`` says that version ``base`` will still be read afterwards.
    """

    layer: LayerId
    sequence_id: SequenceId
    base: Version
    keeps_base: bool


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Nobody will read this version again."""

    layer: LayerId
    version: Version


@dataclass(frozen=True, slots=True)
class SendOutput:
    """Hand what the finished task computed to ``receiver``, a task of another stage."""

    receiver: Task


@dataclass(frozen=True, slots=True)
class RecordAccess:
    """Append one record to the access log."""

    access: Access


@dataclass(frozen=True, slots=True)
class RetireSubnet:
    """This stage has nothing left to do for a subnet."""

    stream: StreamId
    sequence_id: SequenceId


Command = RunTask | WriteLayer | DropVersion | SendOutput | RecordAccess | RetireSubnet
