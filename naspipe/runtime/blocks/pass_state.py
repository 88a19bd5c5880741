"""What a stage holds of the passes and steps that are under way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from naspipe.core.ids import LayerId, SequenceId, StreamId
from naspipe.core.steps import Steps
from naspipe.runtime.blocks.segment import Gradient, Segment, Tensors
from naspipe.runtime.layers.bound_layer import Gradients

SMALLEST = 1e-6
"""Added to a norm before it divides, as by ``torch.nn.utils.clip_grad_norm_``."""


@dataclass(slots=True)
class PassState:
    """Tensors of one pass on this stage."""

    inputs: Tensors = ()
    segments: dict[int, Segment] = field(default_factory=dict)
    layers: dict[int, LayerId] = field(default_factory=dict)
    gradients: tuple[Gradient, ...] = ()
    parameter_gradients: dict[LayerId, Gradients] = field(default_factory=dict)
    batch: Mapping[str, torch.Tensor] | None = None
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of the batch, on the device."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """All on the device but those that only autograd knows of."""
        yield from self.inputs
        yield from (gradient for gradient in self.gradients if gradient is not None)
        yield from self.fields.values()
        for gradients in self.parameter_gradients.values():
            yield from gradients.values()
        for segment in self.segments.values():
            yield from segment.kept


@dataclass(slots=True)
class StepState:
    """What the passes of one step have in common on this stage."""

    gradients: dict[LayerId, Gradients] = field(default_factory=dict)
    """The sums so far, over passes in their order."""
    norms: dict[tuple[int, int], float] = field(default_factory=dict)
    """Of the step's gradients by block and candidate, on every stage that has told its own."""
    taught: Tensors = ()
    """The first pass's output, which the others learn."""
    num_retired: int = 0

    def add(self, layer: LayerId, gradients: Gradients) -> None:
        """Add a pass's gradients behind those of earlier passes, as autograd would."""
        total = self.gradients.setdefault(layer, gradients)
        if total is gradients:
            return
        for name, gradient in gradients.items():
            if name in total:
                total[name].add_(gradient)
            else:
                total[name] = gradient

    def measure(self, names: Mapping[LayerId, Iterable[str]]) -> dict[tuple[int, int], float]:
        """The norm of each layer's gradients: torch's, of its parameters in their order."""
        layers = [layer for layer in sorted(self.gradients) if self.gradients[layer]]
        norms = []
        for layer in layers:
            gradients = self.gradients[layer]
            ordered = [gradients[name] for name in names[layer] if name in gradients]
            norms.append(torch.nn.utils.get_total_norm(ordered).double())
        found: list[float] = torch.stack(norms).tolist() if norms else []
        places = [(layer.block, layer.candidate) for layer in layers]
        return dict(zip(places, found, strict=True))

    def clip(self, gradients: Gradients, greatest: float) -> None:
        """Scale a layer's gradients so that the norm of all of the step's is at most ``greatest``.

        The squares of the layers' norms are summed in the order of block and candidate, as
        float64.
        """
        total = 0.0
        for place in sorted(self.norms):
            total += self.norms[place] * self.norms[place]
        factor = greatest / (math.sqrt(total) + SMALLEST)
        if not factor >= 1.0:  # also where the norm is not a number
            for gradient in gradients.values():
                gradient.mul_(factor)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All on the device."""
        yield from self.taught
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
        """A pass is done on this stage; with the last of its step, all is forgotten."""
        state = self.of(stream, sequence_id)
        state.num_retired += 1
        if state.num_retired == self._steps[stream].passes:
            del self._states[self._key(stream, sequence_id)]

    def _key(self, stream: StreamId, sequence_id: SequenceId) -> tuple[StreamId, SequenceId]:
        return stream, self._steps[stream].first(sequence_id)
