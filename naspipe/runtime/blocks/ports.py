"""What a stage's driver needs of whatever computes its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from naspipe.core.commands import WriteLayer
from naspipe.core.ids import LayerId, SequenceId, StreamId, Version
from naspipe.core.task import Task
from naspipe.runtime.blocks.segment import Gradient
from naspipe.runtime.devices.out_of_memory import DeviceFullError
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.runtime.memory.placement import Placement

Norms = Mapping[tuple[int, int], float]


class BlockCompute(Protocol):
    """Runs blocks and WRITEs in the order it is told; decides nothing."""

    @property
    def placement(self) -> Placement:
        """Where layers and tensors live."""
        ...

    @property
    def stores(self) -> Sequence[LayerStore]:
        """The layers of each stream."""
        ...

    def accept(self, task: Task, tensors: tuple[Gradient, ...]) -> None:
        """Take the input of a task."""
        ...

    def output(self, task: Task) -> tuple[Gradient, ...]:
        """What the finished task hands on."""
        ...

    def run_block(self, task: Task, layer: LayerId, version: Version) -> torch.Tensor | None:
        """Compute one block of a task; returns what there is to report, behind the last one."""
        ...

    def write(self, command: WriteLayer) -> None:
        """Apply a WRITE."""
        ...

    def norms(self, stream: StreamId, first: SequenceId) -> Norms:
        """Of a step's gradients on this stage, by block and candidate."""
        ...

    def take_norms(self, stream: StreamId, first: SequenceId, norms: Norms) -> None:
        """Keep what a stage told of a step's gradients."""
        ...

    def layer(self, layer: LayerId) -> StoredLayer:
        """A layer, made now if it has not been made yet."""
        ...

    def label(self, layer: LayerId) -> str:
        """How messages call a layer; does not make it."""
        ...

    def evict(self, layer: LayerId) -> None:
        """Free a layer's device memory."""
        ...

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Forget a subnet's tensors."""
        ...

    def free_memory(self) -> None:
        """Give up what can be done without."""
        ...

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """The error to end with, when memory is short after :meth:`free_memory` too."""
        ...
