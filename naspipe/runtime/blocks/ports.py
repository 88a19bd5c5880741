"""What a stage's driver needs of whatever computes its blocks, and what that needs in turn.

========================= ==========================================================================
:class:`BlockCompute`      :class:`~naspipe.runtime.blocks.compute.StageCompute` (training),
                           :class:`~naspipe.runtime.evaluating.evaluation.EvaluationCompute`
:class:`Updates`           :class:`~naspipe.runtime.blocks.updates.StageUpdates` (training only)
:class:`PassSum`           :class:`~naspipe.runtime.blocks.sums.Fold`,
                           :class:`~naspipe.runtime.blocks.sums.Tree`
:class:`Exchange`          :class:`~naspipe.runtime.blocks.exchanges.NormExchange`; others by
                           :data:`~naspipe.runtime.blocks.exchanges.EXCHANGES`
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import InputName
from naspipe.core.commands import Contribute, JoinSum, WriteLayer
from naspipe.core.task import Task
from naspipe.runtime.blocks.engine import Gradient
from naspipe.runtime.blocks.sums import GradientSum, Part
from naspipe.runtime.devices.out_of_memory import DeviceFullError
from naspipe.runtime.layers.bound_layer import Gradients
from naspipe.runtime.memory.memory_retry import MemoryRetry


class BlockResult(NamedTuple):
    """What a block leaves to be reported: a loss, or an evaluation's sums."""

    value: torch.Tensor
    section: int = 0
    """Of a loss: the section of the chain whose backward begins with it; 0 at the chain's end."""
    metrics: Mapping[str, torch.Tensor] | None = None
    """Beside a loss, by name: one number each."""
    batch: str = ""
    """Of a loss: a digest of the batch, where this stage has made it."""


class BlockCompute(Protocol):
    """Runs blocks in the order it is told; decides nothing."""

    @property
    def memory_retry(self) -> MemoryRetry:
        """A second try for what was short of device memory."""
        ...

    def accept(self, task: Task, tensors: tuple[Gradient, ...], name: InputName) -> None:
        """Take an input of a task."""
        ...

    def output(self, task: Task, name: InputName) -> tuple[Gradient, ...]:
        """What a task hands on: along the chain, or what a tap takes of it."""
        ...

    def run_block(
        self, task: Task, layer: LayerId, version: Version, option: int
    ) -> BlockResult | None:
        """Compute one block of a task by an option of it; returns what there is to report.

        Raises:
            torch.OutOfMemoryError: when memory is short; nothing is changed then.
        """
        ...

    def evict(self, layer: LayerId) -> None:
        """Free a layer's device memory."""
        ...

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Forget a subnet's tensors."""
        ...

    def label(self, layer: LayerId) -> str:
        """How messages call a layer; does not make it."""
        ...

    def free_memory(self) -> None:
        """Give up what can be done without."""
        ...

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """The error to end with, when memory is short after :meth:`free_memory` too."""
        ...


class Updates(Protocol):
    """What only a training has: WRITEs, and what other stages have to say to them."""

    def write(self, *commands: WriteLayer, begin: Callable[[WriteLayer], None]) -> int:
        """Apply WRITEs; ``begin`` is called before each.

        Returns the nanoseconds that went to gradients that split backwards had left.
        """
        ...

    def give_sum(self, layer: LayerId, version: Version) -> GradientSum:
        """The gradients of a step's passes up to one, for the stage of the next pass."""
        ...

    def take_sum(self, layer: LayerId, version: Version, given: GradientSum) -> None:
        """Keep the gradients of other stages' passes."""
        ...

    def join(self, command: JoinSum) -> None:
        """Add this stage's gradients of a step to those that came."""
        ...

    def contribution(self, command: Contribute) -> Mapping[str, Any]:
        """What this stage contributes to an exchange of a step, all of whose gradients it has."""
        ...

    def take(
        self,
        exchange: str,
        stream: StreamId,
        first: SequenceId,
        sender: StageId,
        values: Mapping[str, Any],
    ) -> None:
        """Keep what a stage contributes until the step's WRITEs."""
        ...


class PassSum(Protocol):
    """The gradients of one layer over the passes of one step, as far as they are here."""

    def add(self, number: int, gradients: Gradients) -> None:
        """Those of one pass, by its number in the step; numbers rise. They are taken over."""
        ...

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """What another group has added up, of earlier passes. They are taken over."""
        ...

    @property
    def parts(self) -> dict[Part, Gradients]:
        """All that is here, as another group joins it."""
        ...

    def total(self) -> Gradients:
        """The sum, when nothing more comes; what is left is this one part."""
        ...


class Exchange(Protocol):
    """What one kind of contribution holds, and what all of them do to a layer's gradients."""

    def contribution(
        self, stream: StreamId, gradients: Mapping[LayerId, Gradients]
    ) -> Mapping[str, Any]:
        """Tensors and plain values by name, of a step's gradients on this stage.

        Each layer's gradients are in the order of its parameters.
        """
        ...

    def apply(
        self,
        layer: LayerId,
        gradients: Gradients,
        contributions: Mapping[StageId, Mapping[str, Any]],
    ) -> None:
        """Change a layer's gradients in place before their WRITE, in the order of the stages."""
        ...
