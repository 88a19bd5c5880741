"""State of the passes and steps in flight on a stage: tensors, graphs and sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId
from naspipe.config.steps import Steps
from naspipe.config.user_code import called
from naspipe.config.wiring import InputName, Tap, TapRole
from naspipe.data.loaders import short_digest
from naspipe.jobs.workload import Workload
from naspipe.worker.blocks.ports import REDUCTIONS, GradientSum, PassSum
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import Gradient, Tensors
from naspipe.worker.blocks.split_backward import Owed
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.kept_state import Statistics


@dataclass(slots=True)
class PassState:
    """Tensors of one pass on this stage."""

    inputs: Tensors = ()
    segments: dict[int, Segment] = field(default_factory=dict)
    arrived: dict[InputName, Tensors] = field(default_factory=dict)
    """Outputs of other blocks that were tapped for this pass."""
    tapped: dict[InputName, Tensors] = field(default_factory=dict)
    """Outputs of this pass's blocks that are kept for other passes."""
    gradients: dict[int, tuple[Gradient, ...]] = field(default_factory=dict)
    """Gradients passed back along the chain, by section."""
    parameter_gradients: dict[LayerId, Gradients] = field(default_factory=dict)
    owed: dict[LayerId, Owed] = field(default_factory=dict)
    """Gradients that split backwards have deferred."""
    options: dict[LayerId, int] = field(default_factory=dict)
    """The options with which the layers were used."""
    statistics: dict[LayerId, Statistics] = field(default_factory=dict)
    """Batch normalisation statistics, if they are deferred."""
    batch: Mapping[str, torch.Tensor] | None = None
    digest: str = ""  # the digest of the batch
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    """Fields of the batch, on the device."""

    def made_batch(self, workload: Workload, number: int) -> Mapping[str, torch.Tensor]:
        """Return the pass's batch, created at the first call."""
        if self.batch is None:
            seed = workload.definition.seed
            with called(lambda: f"in data({seed}, {number})"):
                self.batch = workload.data(seed, number)
            self.digest = short_digest(self.batch) if workload.is_trained else ""
        return self.batch

    @property
    def num_tapped(self) -> int:
        """Number of tapped outputs held for this pass or others, without credits."""
        return len(self.tapped) + sum(map(bool, self.arrived.values()))

    def settle(self, layer: LayerId) -> bool:
        """Compute a layer's deferred gradients. Return True if there were any."""
        if (owed := self.owed.get(layer)) is None:
            return False
        found = {**self.parameter_gradients[layer], **owed.compute()}
        self.parameter_gradients[layer] = owed.in_order(found)
        del self.owed[layer]
        return True

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all tensors on the device, except those held only by autograd."""
        yield from self.inputs
        for tensors in (*self.arrived.values(), *self.tapped.values()):
            yield from tensors
        for back in self.gradients.values():
            yield from (gradient for gradient in back if gradient is not None)
        yield from self.fields.values()
        for named in (*self.parameter_gradients.values(), *self.statistics.values()):
            yield from named.values()
        for owed in self.owed.values():
            yield from owed.tensors
        for segment in self.segments.values():
            yield from segment.kept


class TappedOutputs:
    """Tracks the block outputs that are kept for other passes, their receivers and their number."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._from = {
            tap.source: [each for each in taps if each.source == tap.source] for tap in taps
        }
        self._to = {tap.sink: [each for each in taps if each.sink == tap.sink] for tap in taps}
        self._num = self.most = 0

    def given(self, state: PassState, place: tuple[StreamId, int], role: TapRole) -> Tensors:
        taps = [tap for tap in self._to.get(place, ()) if tap.role is role]
        return tuple([tensor for tap in taps for tensor in state.arrived.get(tap.name, ())])

    def keep(self, state: PassState, place: tuple[StreamId, int], outputs: Tensors) -> None:
        before = len(state.tapped)
        for tap in self._from.get(place, ()):
            state.tapped[tap.name] = tuple(output.detach() for output in outputs)
        self.count(len(state.tapped) - before)

    def count(self, change: int) -> None:
        self._num += change
        self.most = max(self.most, self._num)


@dataclass(slots=True)
class StepState:
    """State shared by the passes of one step on this stage."""

    steps: Steps
    sums: dict[LayerId, PassSum] = field(default_factory=dict)
    """Partial sums of gradients over the passes in order."""
    statistics: dict[LayerId, dict[int, Statistics]] = field(default_factory=dict)
    """Batch normalisation statistics by the number of the pass in its step."""
    counts: Counter[LayerId] = field(default_factory=Counter)
    """Number of passes in each sum."""
    options: dict[LayerId, frozenset[int]] = field(default_factory=dict)
    """The options with which those passes used a layer."""
    contributions: dict[str, dict[StageId, Mapping[str, Any]]] = field(default_factory=dict)
    """Contributions of each stage, by exchange."""
    num_retired: int = 0

    def sum(self, layer: LayerId) -> PassSum:
        if layer not in self.sums:
            self.sums[layer] = REDUCTIONS[self.steps.reduction](self.steps.trained)
        return self.sums[layer]

    def join(self, layer: LayerId, given: GradientSum) -> None:
        """Add another group's sum, whose passes all precede those of this stage."""
        self.counts[layer] += given.num_passes
        self._use(layer, given.options)
        self.sum(layer).join(given.parts)
        if given.statistics:
            self.statistics.setdefault(layer, {}).update(given.statistics)

    def gather(self, layer: LayerId, sequence_id: SequenceId, state: PassState) -> None:
        """Add the gradients of a pass once. None of them may still be deferred."""
        gradients = state.parameter_gradients.pop(layer, None)
        if gradients is None:
            return
        self.counts[layer] += 1
        self._use(layer, {state.options[layer]} if layer in state.options else ())
        number = self.steps.pass_of(sequence_id)
        self.sum(layer).add(number, gradients)
        if (statistics := state.statistics.pop(layer, None)) is not None:
            self.statistics.setdefault(layer, {})[number] = statistics

    def _use(self, layer: LayerId, options: Iterable[int]) -> None:
        self.options[layer] = self.options.get(layer, frozenset()).union(options)

    def total(self, layer: LayerId) -> Gradients:
        """Return the gradients of all passes that used a layer, averaged if the recipe says so."""
        total = self.sums[layer].total()
        if self.steps.average == "users":
            count, self.counts[layer] = self.counts[layer], 1
            for gradient in total.values() if count > 1 else ():
                gradient.div_(count)
        return total

    def tensors(self) -> Iterator[torch.Tensor]:
        for each in self.sums.values():
            for gradients in each.parts.values():
                yield from gradients.values()


class StepStates:
    """The states of the steps in flight on a stage; ``steps`` has the ``Steps`` of each stream."""

    def __init__(self, steps: Sequence[Steps]) -> None:
        self._steps = tuple(steps)
        self._states: dict[tuple[StreamId, SequenceId], StepState] = {}

    def __iter__(self) -> Iterator[StepState]:
        return iter(self._states.values())

    def of(self, stream: StreamId, sequence_id: SequenceId) -> StepState:
        key = self._key(stream, sequence_id)
        if key not in self._states:
            self._states[key] = StepState(self._steps[stream])
        return self._states[key]

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Drop a pass, and after the last pass of its step everything but the sums."""
        self.of(stream, sequence_id).num_retired += 1
        self._end(stream, sequence_id)

    def give_sum(self, layer: LayerId, sequence_id: SequenceId) -> GradientSum:
        """Remove and return the gradients of a layer up to a pass, to be sent to another stage."""
        state = self.of(layer.stream, sequence_id)
        given = GradientSum(
            state.sum(layer).parts,
            state.counts.pop(layer, 0),
            state.statistics.pop(layer, {}),
            state.options.pop(layer, frozenset()),
        )
        del state.sums[layer]
        self._end(layer.stream, sequence_id)
        return given

    def _end(self, stream: StreamId, sequence_id: SequenceId) -> None:
        key = self._key(stream, sequence_id)
        state = self._states[key]
        if state.num_retired == self._steps[stream].passes and not state.sums:
            del self._states[key]

    def _key(self, stream: StreamId, sequence_id: SequenceId) -> tuple[StreamId, SequenceId]:
        return stream, self._steps[stream].first(sequence_id)
