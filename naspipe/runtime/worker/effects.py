"""What carries out the commands of one stage's controller, put together by whoever starts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from naspipe.config.errors import InvariantError
from naspipe.config.ids import StageId, Subnet
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import PLAIN, Wiring
from naspipe.core.events import StreamResumed
from naspipe.runtime.blocks.ports import BlockCompute, Updates
from naspipe.runtime.checkpoints.checkpointer import Checkpointer
from naspipe.runtime.jobs.ports import Positions
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.memory.placement import Placement
from naspipe.runtime.wire.ports import Transport
from naspipe.runtime.worker.contributions import Contributions
from naspipe.runtime.worker.late_fields import LateFields
from naspipe.runtime.worker.layer_exchange import LayerExchange
from naspipe.runtime.worker.layer_writes import LayerWrites
from naspipe.runtime.worker.output_sender import OutputSender
from naspipe.runtime.worker.ports import StageSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """A stage's parts, each with one kind of effect."""

    compute: BlockCompute
    """Runs blocks."""
    stores: Sequence[LayerStore]
    """The layers of each stream."""
    placement: Placement
    """Where layers and tensors live."""
    transport: Transport
    """The way to the other workers."""
    positions: Positions
    """Which of them holds which stage."""
    sink: StageSink
    """Where results go."""
    checkpointer: Checkpointer
    """Captures what belongs to a checkpoint."""
    updates: Updates | None = None
    """WRITEs; None where nothing is trained."""
    fields: LateFields | None = None
    """Batch fields that come later; None where all come with their batch."""

    def output_sender(self, stage: StageId) -> OutputSender:
        """What hands the outputs of tasks on."""
        return OutputSender(stage, self.compute, self.transport, self.positions)

    def layer_exchange(self) -> LayerExchange:
        """What hands layers over and takes them."""
        return LayerExchange(
            self.stores,
            self.placement,
            self.transport,
            self.positions,
            self.compute.memory_retry,
            self.updates,
        )

    def contributions(self, stage: StageId) -> Contributions | None:
        """What a stage has to do with exchanges; None where nothing is trained."""
        if self.updates is None:
            return None
        return Contributions(stage, self.updates, self.transport, self.positions)

    def writing(self, digests: bool, verified: int) -> LayerWrites | None:
        """What applies WRITEs; None where nothing is trained."""
        if self.updates is None:
            return None
        return LayerWrites(self.updates, self.stores, digests, verified, self.sink)


Part = TypeVar("Part")


def needed(part: Part | None, why: object) -> Part:
    """A part that not every stage has, where a command or a message asks for it.

    Raises:
        InvariantError: when this stage has none.
    """
    if part is None:
        raise InvariantError(f"{why}: this stage trains nothing and waits for nothing")
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """How a stage's loop goes on."""

    timeout_seconds: float
    """How long to wait for a message before giving up."""
    digests: bool = False
    """Hash the bytes that every WRITE leaves."""
    verified: int = 0
    """Sequence IDs below this are compared with a plain loop."""
    wiring: Wiring = PLAIN
    """How the streams are joined."""
    steps: Steps = ONE_PASS
    """How passes form steps, in every stream."""
    resumed: Sequence[StreamResumed] = ()
    """Streams that go on behind a checkpoint."""

    def is_trained(self, subnet: Subnet) -> bool:
        """Whether a backward follows a subnet's forward."""
        is_probe = self.steps.is_probe(subnet.sequence_id)
        return self.wiring.of(subnet.stream).is_trained and not is_probe
