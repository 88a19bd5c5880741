"""What a stage's controller asks its driver to do, to be carried out in the order given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from naspipe.config.ids import Access, LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import CHAIN, InputName
from naspipe.engine.events import LAYER, Parcel, Task


@dataclass(frozen=True, slots=True)
class RunTask:
    """Compute a run of blocks of one task; each block is told as ``BlockFinished``.

    ``reads`` names the layer and the version of each block in execution order: rising
    blocks in a forward, falling blocks in a backward. A stage has one run at a time.
    ``options`` says of each by which option the subnet uses the layer, where layers have several.
    """

    task: Task
    reads: tuple[tuple[LayerId, Version], ...]
    options: tuple[int, ...] = ()

    def accesses(self) -> Iterator[tuple[LayerId, Version, int]]:
        """Layer, version and option of each block; an only option is the layer's candidate."""
        options = self.options or (layer.candidate for layer, _ in self.reads)
        return ((*read, option) for read, option in zip(self.reads, options, strict=True))


@dataclass(frozen=True, slots=True)
class WriteLayer:
    """Apply the gradient of ``sequence_id`` to version ``base``, making version ``sequence_id``.

    ``keeps_base`` says that version ``base`` will still be read afterwards. Unless it
    ``ends_step``, a later pass of the same step writes the layer too: the gradient is added to the
    step's, and the layer stays as it is.
    """

    layer: LayerId
    sequence_id: SequenceId
    base: Version
    keeps_base: bool
    ends_step: bool = True


@dataclass(frozen=True, slots=True)
class Contribute:
    """Hand this stage's contribution to an exchange to each of ``receivers``.

    ``sequence_id`` is the first of a step whose gradients are all there on this stage. Each
    receiver, this stage too if it is one, is told ``ContributionArrived``. Others contribute what
    concerns the layers that are ``lent`` to this stage.
    """

    exchange: str
    stream: StreamId
    sequence_id: SequenceId
    receivers: tuple[StageId, ...]
    lent: tuple[LayerId, ...] = ()


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Nobody will read this version again."""

    layer: LayerId
    version: Version


@dataclass(frozen=True, slots=True)
class SendOutput:
    """Hand what a task computed to ``receiver`` as its input ``name``.

    ``upcoming`` names the tasks of the receiving stage whose input this stage expects to
    finish next: a hint for its predictor. ``source`` is the task whose output it is, where it is
    not the receiver's own on this stage. A receiver on this very stage has its input at once.
    """

    receiver: Task
    upcoming: tuple[Task, ...] = ()
    name: InputName = CHAIN
    source: Task | None = None


@dataclass(frozen=True, slots=True)
class RequestField:
    """Ask for a batch field that comes later; told back as an ``InputArrived`` of ``task``."""

    task: Task
    field: str


@dataclass(frozen=True, slots=True)
class PushVersion:
    """Hand what a user of a layer needs to its stage; told there as ``VersionArrived``.

    ``version`` is the newest here. Of :data:`~naspipe.engine.events.SUM` and ``BUFFERS`` it is the
    last pass on this stage. ``skips_buffers`` where others bring the receiver newer ones.
    """

    layer: LayerId
    version: Version
    stage: StageId
    parcel: Parcel = LAYER
    skips_buffers: bool = False


@dataclass(frozen=True, slots=True)
class JoinSum:
    """Add the gradients of this stage to those that came as ``version``'s sum.

    They follow it: ``base`` is the version from before the step, which may still be read
    (``keeps_base``). In a tree there is none; some of them may have been added up before.
    """

    layer: LayerId
    version: Version
    base: Version | None = None
    keeps_base: bool = False


@dataclass(frozen=True, slots=True)
class LoadLayer:
    """Start copying a layer from host memory to the device; told back as ``LayerLoaded``."""

    layer: LayerId


@dataclass(frozen=True, slots=True)
class SaveLayer:
    """Start copying a layer from the device to host memory; told back as ``LayerSaved``.

    The layer stays on the device.
    """

    layer: LayerId


@dataclass(frozen=True, slots=True)
class EvictLayer:
    """Free a layer's memory on the device at once; its bytes are in host memory."""

    layer: LayerId


@dataclass(frozen=True, slots=True)
class RecordAccess:
    """Append one record to the access log."""

    access: Access


@dataclass(frozen=True, slots=True)
class RetireSubnet:
    """This stage has nothing left to do for a subnet."""

    stream: StreamId
    sequence_id: SequenceId


@dataclass(frozen=True, slots=True)
class CaptureLayer:
    """Keep a layer as it is now for the checkpoint at ``cut``.

    ``versions`` rise: everything of the last one, and the parameters of the earlier ones, which
    lagging readers may still ask for. A layer that nobody has used since the run was resumed is
    taken from the checkpoint that it was resumed from.
    """

    layer: LayerId
    versions: tuple[Version, ...]
    cut: SequenceId


@dataclass(frozen=True, slots=True)
class FinishCut:
    """This stage's part of a checkpoint is captured, and every earlier subnet is retired here."""

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
