"""The commands that a stage's controller gives its driver, to be carried out in the given order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from naspipe.config.ids import Access, LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import CHAIN, InputName
from naspipe.engine.events import LAYER, Parcel, Task


@dataclass(frozen=True, slots=True)
class RunTask:
    """Compute several consecutive blocks of one task; each block is reported as ``BlockFinished``.

    ``reads`` names the layer and the version of each block in execution order: ascending blocks in
    a forward, descending blocks in a backward. A stage has one run at a time. ``options`` gives the
    option that the subnet uses for each layer, if layers have several.
    """

    task: Task
    reads: tuple[tuple[LayerId, Version], ...]
    options: tuple[int, ...] = ()

    def accesses(self) -> Iterator[tuple[LayerId, Version, int]]:
        """Yield the layer, version and option (by default the candidate) of each block."""
        options = self.options or (layer.candidate for layer, _ in self.reads)
        return ((*read, option) for read, option in zip(self.reads, options, strict=True))


@dataclass(frozen=True, slots=True)
class WriteLayer:
    """Apply the gradient of ``sequence_id`` to version ``base``, making version ``sequence_id``.

    If ``keeps_base`` is set, version ``base`` will still be read afterwards. If ``ends_step`` is
    not set, a later pass of the same step writes the layer too: the gradient is only accumulated,
    and the layer does not change.
    """

    layer: LayerId
    sequence_id: SequenceId
    base: Version
    keeps_base: bool
    ends_step: bool = True


@dataclass(frozen=True, slots=True)
class Contribute:
    """Send this stage's contribution to an exchange to each of ``receivers``.

    ``sequence_id`` is the first of a step whose gradients are complete on this stage. Each
    receiver, which may include this stage, gets ``ContributionArrived``. Other stages contribute
    the part that concerns the layers ``lent`` to this stage.
    """

    exchange: str
    stream: StreamId
    sequence_id: SequenceId
    receivers: tuple[StageId, ...]
    lent: tuple[LayerId, ...] = ()


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Discard a version that will not be read again."""

    layer: LayerId
    version: Version


@dataclass(frozen=True, slots=True)
class SendOutput:
    """Send the output of a task to ``receiver`` as its input ``name``.

    ``upcoming`` names the tasks of the receiving stage whose input this stage expects to finish
    next, as a hint for its predictor. ``source`` is the task that computed the output, if it is not
    the receiver's own task on this stage. A receiver on the same stage has its input immediately.
    """

    receiver: Task
    upcoming: tuple[Task, ...] = ()
    name: InputName = CHAIN
    source: Task | None = None


@dataclass(frozen=True, slots=True)
class RequestField:
    """Request a batch field that arrives later; reported as an ``InputArrived`` of ``task``."""

    task: Task
    field: str


@dataclass(frozen=True, slots=True)
class PushVersion:
    """Send what a user of a layer needs to its stage, where it is reported as ``VersionArrived``.

    ``version`` is the newest here. For :data:`~naspipe.engine.events.SUM` and ``BUFFERS`` it is the
    last pass on this stage. ``skips_buffers`` is set if other stages send the receiver newer
    buffers.
    """

    layer: LayerId
    version: Version
    stage: StageId
    parcel: Parcel = LAYER
    skips_buffers: bool = False


@dataclass(frozen=True, slots=True)
class JoinSum:
    """Add the gradients of this stage to those that arrived as ``version``'s sum.

    This stage's gradients are added after the sum: ``base`` is the version from before the step,
    which may still be read (``keeps_base``). In a tree ``base`` is None, and some of this stage's
    gradients may have been accumulated before.
    """

    layer: LayerId
    version: Version
    base: Version | None = None
    keeps_base: bool = False


@dataclass(frozen=True, slots=True)
class LoadLayer:
    """Start copying a layer from host memory to the device; reported as ``LayerLoaded``."""

    layer: LayerId


@dataclass(frozen=True, slots=True)
class SaveLayer:
    """Start copying a layer from the device to host memory; reported as ``LayerSaved``.

    The layer stays on the device.
    """

    layer: LayerId


@dataclass(frozen=True, slots=True)
class EvictLayer:
    """Free a layer's device memory immediately; its bytes are in host memory."""

    layer: LayerId


@dataclass(frozen=True, slots=True)
class RecordAccess:
    """Append one record to the access log."""

    access: Access


@dataclass(frozen=True, slots=True)
class RetireSubnet:
    """Report that this stage has no work left for a subnet."""

    stream: StreamId
    sequence_id: SequenceId


@dataclass(frozen=True, slots=True)
class CaptureLayer:
    """Capture the current state of a layer for the checkpoint at ``cut``.

    ``versions`` are in ascending order: the last one is captured completely; of the earlier ones,
    which lagging readers may still request, only the parameters. A layer that has not been used
    since the run was resumed is taken from the checkpoint that the run was resumed from.
    """

    layer: LayerId
    versions: tuple[Version, ...]
    cut: SequenceId


@dataclass(frozen=True, slots=True)
class FinishCut:
    """Report that this stage's part of a checkpoint is captured and earlier subnets are retired."""

    stream: StreamId
    cut: SequenceId


Command = (
    RunTask
    | WriteLayer
    | Contribute
    | RequestField
    | DropVersion
    | SendOutput
    | PushVersion
    | JoinSum
    | LoadLayer
    | SaveLayer
    | EvictLayer
    | RecordAccess
    | RetireSubnet
    | CaptureLayer
    | FinishCut
)
