"""Interfaces between a stage's driver and the computation of its blocks, and sums of gradients.

:class:`BlockCompute` is implemented by :class:`~naspipe.worker.blocks.compute.StageCompute`, which
trains, and by :class:`~naspipe.evaluation.evaluation.EvaluationCompute`. :class:`Fold` and
:class:`Tree` are the two orders in which the gradients of the passes of a step are added up.
An :class:`Exchange` defines what stages send each other about gradients before the updates of a
step; :data:`~naspipe.worker.blocks.updates.EXCHANGES` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.wiring import InputName
from naspipe.engine.events import Task
from naspipe.machine.out_of_memory import DeviceFullError, MemoryRetry
from naspipe.worker.blocks.specs import Gradient
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.kept_state import Statistics

Part = tuple[int, int]
"""The passes of a partial sum: the number of the first pass in its step, and the count."""


class GradientSum(NamedTuple):
    """The summed gradients of some passes of a step, to be sent to another group."""

    parts: Mapping[Part, Gradients]
    num_passes: int
    statistics: Mapping[int, Statistics]
    """Batch normalisation statistics by the number of the pass in its step."""
    options: frozenset[int] = frozenset()
    """The options with which the passes used the layer."""


class Fold:
    """Sums the gradients of a layer in a step by adding each pass in order, as autograd does.

    Sums from another group belong to earlier passes, so they must arrive before anything is added.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._sum: Gradients | None = None

    def add(self, number: int, gradients: Gradients) -> None:
        """Add the gradients of one pass, in increasing order of ``number``, and take ownership."""
        self._sum = gradients if self._sum is None else _plus(self._sum, gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """Add another group's sums of earlier passes, and take ownership of them."""
        for (first, _), gradients in parts.items():
            self.add(first, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        """Return everything summed so far, in the form that another group joins."""
        return {} if self._sum is None else {(0, self._passes): self._sum}

    def total(self) -> Gradients:
        """Return the sum after all passes have been added."""
        return self._sum or {}


class Tree:
    """Sums the gradients of a layer in a step pairwise; the methods are those of :class:`Fold`.

    Each half of a step is summed separately, then both are added. If a pass does not use the layer,
    or leaves a parameter without a gradient, the sum of the other half is used alone. Halves are
    added as soon as both are available. The number of passes of a step is a power of two.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._parts: dict[Part, Gradients] = {}

    def add(self, number: int, gradients: Gradients) -> None:
        self._put((number, 1), gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        for part, gradients in parts.items():
            self._put(part, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        return dict(self._parts)

    def total(self) -> Gradients:
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


PassSum = Fold | Tree

REDUCTIONS: dict[str, type[Fold] | type[Tree]] = {"fold": Fold, "tree": Tree}
"""Reductions by their names in the recipe."""


def _plus(left: Gradients, right: Gradients) -> Gradients:
    """Add the right gradients to the left ones in place. Either may lack parameters."""
    for name, gradient in right.items():
        if name in left:
            left[name].add_(gradient)
        else:
            left[name] = gradient
    return left


class BlockResult(NamedTuple):
    """The result of a block to be reported: a loss, or the sums of an evaluation."""

    value: torch.Tensor
    section: int = 0
    """The section of the chain whose backward begins with the loss; 0 at the end of the chain."""
    metrics: Mapping[str, torch.Tensor] | None = None  # a single number each
    batch: str = ""
    """A digest of the loss's batch, if this stage has created the batch."""


class BlockCompute(Protocol):
    """Runs blocks in the commanded order, without making decisions."""

    @property
    def memory_retry(self) -> MemoryRetry: ...

    def accept(self, task: Task, tensors: tuple[Gradient, ...], name: InputName) -> None: ...

    def output(self, task: Task, name: InputName) -> tuple[Gradient, ...]: ...

    def run_block(
        self, task: Task, layer: LayerId, version: Version, option: int
    ) -> BlockResult | None:
        """Compute one block of a task with one of its options; return a result to report, if any.

        Raises:
            torch.OutOfMemoryError: if memory runs out; no state has changed in this case.
        """
        ...

    def evict(self, layer: LayerId) -> None: ...

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None: ...

    def label(self, layer: LayerId) -> str: ...

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """Return the error to raise if memory runs out after everything possible was freed."""
        ...


class Exchange(Protocol):
    """An exchange of contributions between stages before the updates of a step."""

    def contribution(
        self, stream: StreamId, gradients: Mapping[LayerId, Gradients]
    ) -> Mapping[str, Any]:
        """Return tensors and plain values by name, computed from a step's gradients on this stage.

        Each layer's gradients are in the order of its parameters.
        """
        ...

    def apply(
        self,
        layer: LayerId,
        gradients: Gradients,
        contributions: Mapping[StageId, Mapping[str, Any]],
    ) -> None:
        """Modify a layer's gradients in place before its update, in the order of the stages."""
        ...
