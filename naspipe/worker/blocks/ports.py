"""What a stage's driver needs of whatever computes its blocks, and what that needs in turn.

========================= ==========================================================================
:class:`BlockCompute`      :class:`~naspipe.worker.blocks.compute.StageCompute` (training),
                           :class:`~naspipe.evaluation.evaluation.EvaluationCompute`
:class:`Updates`           :class:`~naspipe.worker.blocks.updates.StageUpdates` (training only)
:class:`PassSum`           :class:`~naspipe.worker.blocks.ports.Fold`,
                           :class:`~naspipe.worker.blocks.ports.Tree`
:class:`Exchange`          :class:`~naspipe.worker.blocks.updates.NormExchange`; others by
                           :data:`~naspipe.worker.blocks.updates.EXCHANGES`
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import InputName
from naspipe.engine.commands import Contribute, JoinSum, WriteLayer
from naspipe.engine.events import Task
from naspipe.machine.out_of_memory import DeviceFullError, MemoryRetry
from naspipe.worker.blocks.specs import Gradient
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.kept_state import Statistics

Part = tuple[int, int]
"""Of which passes something is the sum: the first one's number in its step, and how many."""


class GradientSum(NamedTuple):
    """Of some passes of a step, on their way to another group."""

    parts: Mapping[Part, Gradients]
    num_passes: int
    statistics: Mapping[int, Statistics]
    """Of batch normalisation, by the number of the pass in its step."""
    options: frozenset[int] = frozenset()
    """By which the passes used the layer."""


class Fold:
    """Each pass behind the ones before it, as autograd adds them up.

    What comes from another group comes first, so it is the only thing here when it comes.

    Args:
        passes: of a step.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._sum: Gradients | None = None

    def add(self, number: int, gradients: Gradients) -> None:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        self._sum = gradients if self._sum is None else _plus(self._sum, gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        for (first, _), gradients in parts.items():
            self.add(first, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        return {} if self._sum is None else {(0, self._passes): self._sum}

    def total(self) -> Gradients:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        return self._sum or {}


class Tree:
    """Halves of halves: each half of a step is added up for itself, then both.

    A pass that does not use the layer, or leaves a parameter without a gradient, is left out: then
    the other half stands for both. Halves are joined as soon as both are there.

    Args:
        passes: of a step, a power of two.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._parts: dict[Part, Gradients] = {}

    def add(self, number: int, gradients: Gradients) -> None:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        self._put((number, 1), gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        for part, gradients in parts.items():
            self._put(part, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        return dict(self._parts)

    def total(self) -> Gradients:
        """See :class:`naspipe.worker.blocks.ports.PassSum`."""
        total = self._under((0, self._passes)) or {}
        self._parts = {(0, self._passes): total}
        return total

    def _put(self, part: Part, gradients: Gradients) -> None:
        first, count = part
        is_right = first // count % 2 == 1
        other = (first - count if is_right else first + count, count)
        found = self._parts.pop(other, None)
        if found is None:
            self._parts[part] = gradients
        elif is_right:
            self._put((other[0], 2 * count), _plus(found, gradients))
        else:
            self._put((first, 2 * count), _plus(gradients, found))

    def _under(self, part: Part) -> Gradients | None:
        """The sum of what is there of some passes."""
        first, count = part
        if part in self._parts:
            return self._parts.pop(part)
        if count == 1:
            return None
        half = count // 2
        left, right = self._under((first, half)), self._under((first + half, half))
        if left is None or right is None:
            return left if right is None else right
        return _plus(left, right)


REDUCTIONS: dict[str, type[Fold] | type[Tree]] = {"fold": Fold, "tree": Tree}
"""By the name in the recipe; they are given the passes of a step."""


def _plus(left: Gradients, right: Gradients) -> Gradients:
    """The right ones added to the left ones in place; a parameter may have none."""
    for name, gradient in right.items():
        if name in left:
            left[name].add_(gradient)
        else:
            left[name] = gradient
    return left


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
