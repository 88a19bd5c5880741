"""What a stage holds of the passes and steps that are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId
from naspipe.core.steps import Steps
from naspipe.core.wiring import InputName
from naspipe.runtime.blocks.segment import Gradient, Segment, Tensors
from naspipe.runtime.layers.bound_layer import Gradients
from naspipe.runtime.layers.norm_statistics import Statistics


@dataclass(slots=True)
class PassState:
    """Tensors of one pass on this stage."""

    inputs: Tensors = ()
    segments: dict[int, Segment] = field(default_factory=dict)
    layers: dict[int, LayerId] = field(default_factory=dict)
    arrived: dict[InputName, Tensors] = field(default_factory=dict)
    """Tapped from other blocks, for this pass."""
    tapped: dict[InputName, Tensors] = field(default_factory=dict)
    """Of this pass's blocks, for others."""
    gradients: dict[int, tuple[Gradient, ...]] = field(default_factory=dict)
    """By section, what goes back along the chain."""
    parameter_gradients: dict[LayerId, Gradients] = field(default_factory=dict)
    statistics: dict[LayerId, Statistics] = field(default_factory=dict)
    """Of batch normalisation, where it is deferred."""
    batch: Mapping[str, torch.Tensor] | None = None
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of the batch, on the device."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """All on the device but those that only autograd knows of."""
        yield from self.inputs
        for tensors in (*self.arrived.values(), *self.tapped.values()):
            yield from tensors
        for back in self.gradients.values():
            yield from (gradient for gradient in back if gradient is not None)
        yield from self.fields.values()
        for named in (*self.parameter_gradients.values(), *self.statistics.values()):
            yield from named.values()
        for segment in self.segments.values():
            yield from segment.kept


class GradientSum(NamedTuple):
    """Of some passes of a step."""

    gradients: Gradients
    num_passes: int
    statistics: list[Statistics]
    """Of batch normalisation, a pass each."""


@dataclass(slots=True)
class StepState:
    """What the passes of one step have in common on this stage."""

    gradients: dict[LayerId, Gradients] = field(default_factory=dict)
    """The sums so far, over passes in their order."""
    statistics: dict[LayerId, list[Statistics]] = field(default_factory=dict)
    """Of batch normalisation, a pass each, in their order."""
    counts: Counter[LayerId] = field(default_factory=Counter)
    """Passes whose gradients they hold."""
    contributions: dict[str, dict[StageId, Mapping[str, Any]]] = field(default_factory=dict)
    """By exchange, what each stage has told."""
    num_retired: int = 0

    def add(self, layer: LayerId, gradients: Gradients, count: int = 1) -> None:
        """Add a pass's gradients behind those of earlier passes, as autograd would.

        Or those of ``count`` passes, added up in another group.
        """
        self.counts[layer] += count
        total = self.gradients.setdefault(layer, gradients)
        if total is gradients:
            return
        for name, gradient in gradients.items():
            if name in total:
                total[name].add_(gradient)
            else:
                total[name] = gradient

    def gather(self, layer: LayerId, state: PassState) -> None:
        """Take over what a pass on this stage has left of a layer, once."""
        gradients = state.parameter_gradients.pop(layer, None)
        if gradients is None:
            return
        self.add(layer, gradients)
        if (statistics := state.statistics.pop(layer, None)) is not None:
            self.statistics.setdefault(layer, []).append(statistics)

    def average(self, layer: LayerId) -> None:
        """Divide a layer's sum by how many passes it is of, once."""
        count, self.counts[layer] = self.counts[layer], 1
        for gradient in self.gradients[layer].values() if count > 1 else ():
            gradient.div_(count)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All on the device."""
        for gradients in self.gradients.values():
            yield from gradients.values()


class StepStates:
    """Those of the steps that are under way on a stage.

    Args:
        steps: of each stream.
    """

    def __init__(self, steps: Sequence[Steps]) -> None:
        self._steps = tuple(steps)
        self._states: dict[tuple[StreamId, SequenceId], StepState] = {}

    def __iter__(self) -> Iterator[StepState]:
        return iter(self._states.values())

    def of(self, stream: StreamId, sequence_id: SequenceId) -> StepState:
        """That of a pass's step."""
        return self._states.setdefault(self._key(stream, sequence_id), StepState())

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """A pass is done on this stage; with the last of its step, all but sums is forgotten."""
        self.of(stream, sequence_id).num_retired += 1
        self._end(stream, sequence_id)

    def give_sum(self, layer: LayerId, sequence_id: SequenceId) -> GradientSum:
        """The gradients of a layer up to a pass, which leave this stage."""
        state = self.of(layer.stream, sequence_id)
        given = GradientSum(
            state.gradients.pop(layer, {}),
            state.counts.pop(layer, 0),
            state.statistics.pop(layer, []),
        )
        self._end(layer.stream, sequence_id)
        return given

    def _end(self, stream: StreamId, sequence_id: SequenceId) -> None:
        key = self._key(stream, sequence_id)
        state = self._states[key]
        if state.num_retired == self._steps[stream].passes and not state.gradients:
            del self._states[key]

    def _key(self, stream: StreamId, sequence_id: SequenceId) -> tuple[StreamId, SequenceId]:
        return stream, self._steps[stream].first(sequence_id)
