"""What one stage holds of each pass, and the computing of its blocks and WRITEs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError, NotFiniteError
from naspipe.config.ids import LayerId, SequenceId, StreamId, Version
from naspipe.config.wiring import CHAIN, FIELD, PLAIN, InputName, TapRole, Wiring
from naspipe.engine.builder import build_policy
from naspipe.engine.events import Task, TaskKind
from naspipe.jobs.losses import Loss
from naspipe.jobs.ports import Objective
from naspipe.jobs.workload import Workload, field_of
from naspipe.machine.determinism import block_seed
from naspipe.machine.device_waits import Wait, on_host
from naspipe.machine.out_of_memory import DeviceFullError, MemoryRetry, explain_shortage
from naspipe.plan.costs import first_of_kind
from naspipe.worker.blocks.forward_only import forward_only, probe
from naspipe.worker.blocks.objectives import (
    Ending,
    JoinedObjective,
    LayerObjective,
    metrics_of,
    objectives_of,
)
from naspipe.worker.blocks.pass_state import PassState, StepStates, TappedOutputs
from naspipe.worker.blocks.ports import BlockResult
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import Gradient, SegmentSpec, spec_of
from naspipe.worker.blocks.split_backward import Splits
from naspipe.worker.blocks.updates import Passes, StageUpdates
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.layers.bound_layer import obstacle_to_edits
from naspipe.worker.layers.kept_state import other_buffers
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Placement


class Averaging:
    """Scales the first gradient of each pass's backward.

    Items are counted from the data alone, so that no group has to ask another one. Batches of
    other groups are made for that, unless the data have a method ``items(seed, number)``.

    Args:
        workload: whose steps they are.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._steps = workload.definition.recipe.steps
        self._count = lru_cache(4 * self._steps.passes)(self._count_items)

    def part(self, gradient: torch.Tensor, sequence_id: int) -> torch.Tensor:
        """The gradient of a pass's loss as a part of the step's loss.

        Raises:
            ConfigError: when no pass of the step has an item.
        """
        steps = self._steps
        if not steps.is_average or steps.trained == 1:
            return gradient
        if not steps.weighs_items:
            return gradient / steps.trained
        first = steps.step(sequence_id) * steps.trained
        end = first + steps.trained
        total = sum(self._count(number) for number in range(first, end))
        if not total:
            raise ConfigError(
                f"weight=items: expected targets in the batches {first} to {end - 1}, found none "
                f"that the loss counts"
            )
        return gradient * (self._count(steps.batch(sequence_id)) / total)

    def _count_items(self, number: int) -> int:
        data, seed = self._workload.data, self._workload.definition.seed
        own = getattr(data, "items", None)
        if callable(own):
            return int(own(seed, number))
        target = field_of(data(seed, number), self._workload.target_field, number)
        return counted_items(target, self._workload.loss)


def first_gradient(loss: torch.Tensor, nonfinite: str, sequence_id: int) -> Gradient:
    """What a backward starts with; None for a step whose parameters stay as they are.

    Args:
        loss: of one pass.
        nonfinite: the recipe's choice: ``stop``, ``skip`` or ``keep``.
        sequence_id: the subnet, for the message.

    Raises:
        NotFiniteError: when the choice is to stop.
    """
    if nonfinite == "keep" or bool(on_host(torch.isfinite(loss).all(), Wait.FINITE)):
        return torch.ones_like(loss)
    if nonfinite == "skip":
        return None
    raise NotFiniteError(
        f"subnet {sequence_id}: expected a finite loss, found {float(loss):g}; choose a lower lr, "
        f"or --set nonfinite=skip (its layers stay as they are) or keep (train on)"
    )


def counted_items(target: torch.Tensor, loss: Loss) -> int:
    """Values of a target that a loss averages over: all but those it ignores."""
    ignored = getattr(loss, "ignore_index", None)
    if ignored is None or target.is_floating_point():
        return target.numel()
    return int((target != ignored).sum())


_Place = tuple[StreamId, int]
"""A block of a stream."""

_Form = tuple[SegmentSpec, tuple[str, ...]]
"""What is the same in all passes of a block, and the batch fields that it is given."""


class StageCompute:
    """Runs blocks and WRITEs in the order it is told; decides nothing.

    Args:
        workloads: of each stream.
        placement: where layers and tensors live.
        restored: of each stream, the checkpoint that it goes on from, if there is one.
        wiring: how the streams are joined.
        splits: of each stream, blocks with those of their options whose backwards are split.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        placement: Placement,
        restored: Sequence[Restored | None] = (),
        wiring: Wiring = PLAIN,
        splits: Sequence[Container[tuple[int, int]]] = (),
    ) -> None:
        self.placement = placement
        self.memory_retry = MemoryRetry(self.free_memory)
        self._workloads = tuple(workloads)
        sources = tuple(restored) or (None,) * len(workloads)
        self.stores = tuple(map(self._make_store, workloads, sources))
        """The layers of each stream."""
        self._steps = tuple(workload.definition.recipe.steps for workload in workloads)
        self._together = StepStates(self._steps)
        self._averaging = tuple(map(Averaging, workloads))
        self._passes: Passes = {}
        room = self.memory_retry.wrapped(placement.make_room)
        self._settle = self.memory_retry.wrapped(PassState.settle)
        self.updates = StageUpdates(
            workloads, self._passes, self._together, self.stores, room, self._settle,
            wiring.exchanges,
        )  # fmt: skip
        """WRITEs, on the same layers."""
        lengths = [len(workload.space) for workload in workloads]
        taps = wiring.completed(lengths, self._steps[0]).taps if self._steps else ()
        self._tapped = TappedOutputs(taps)
        taught = {tap.sink for tap in taps if tap.role is TapRole.LESSON}
        self._objectives = [
            objectives_of(workload, (stream, length - 1) in taught)
            for stream, (workload, length) in enumerate(zip(workloads, lengths, strict=True))
        ]
        self._sections = [
            {section.stop - 1: number for number, section in enumerate(each)}
            for each in (w.wiring.sections(len(w.space)) for w in workloads)
        ]
        """Of each stream, by the block that a backward begins in."""
        chosen = splits or [()] * len(workloads)
        self._splits = Splits(chosen, [first_of_kind(each.space) for each in workloads])
        self._forms: dict[tuple[StreamId, int, int], _Form] = {}
        """By stream, block and option."""

    def accept(self, task: Task, tensors: tuple[Gradient, ...], name: InputName = CHAIN) -> None:
        """Take an input of a task: leaf tensors for a forward, gradients for a backward."""
        state = self._pass(task)
        receive = self.memory_retry.wrapped(self.placement.receive)
        moved = tuple(t if t is None else receive(t) for t in tensors)
        there = tuple(tensor for tensor in moved if tensor is not None)
        if task.kind is TaskKind.BACKWARD:
            state.gradients[task.section] = moved
        elif name == CHAIN:
            state.inputs = there
        elif name.startswith(FIELD):
            (state.fields[name.removeprefix(FIELD)],) = there
        else:
            state.arrived[name] = there
            self._tapped.count(bool(there))

    def output(self, task: Task, name: InputName = CHAIN) -> tuple[Gradient, ...]:
        """What a task hands on: leaf tensors, or gradients (absent ones as None).

        They are on the stage's device: the transport takes them from there.
        """
        state = self._pass(task)
        if task.kind is TaskKind.BACKWARD:
            return state.gradients[task.section]
        if name != CHAIN:
            return state.tapped[name]
        outputs, state.inputs = state.inputs, ()
        return outputs

    def run_block(
        self, task: Task, layer: LayerId, version: Version, option: int
    ) -> BlockResult | None:
        """Compute one block of a task by an option of it; returns the loss where one arises.

        Raises:
            torch.OutOfMemoryError: when memory is short; nothing is changed then.
        """
        state = self._pass(task)
        if task.kind is TaskKind.FORWARD:
            loss = self._forward(state, task, (layer, version, option))
            self.placement.finish_block()
            return loss
        segment = state.segments[layer.block]
        try:
            gradients = segment.backward(
                state.gradients[task.section], self._splits.of(layer, option, segment.has_end)
            )
        except torch.OutOfMemoryError:
            segment.undo_backward()
            raise
        del state.segments[layer.block]
        state.gradients[task.section] = self.placement.apart(layer, gradients)
        own = segment.take_gradients()
        apart = self.placement.apart(layer, own.values())
        state.parameter_gradients[layer] = dict(zip(own, apart, strict=True))
        state.options[layer] = option
        if segment.owed is not None:
            state.owed[layer] = segment.owed
        self.placement.finish_block()
        return None

    @property
    def measured(self) -> dict[str, Any]:
        """What the stage reports of its blocks at its end.

        ``most_tapped``: outputs held at once for others, or taken from them; see ``Tap``.
        ``whole_backwards``: stream, block, option and reason of each candidate that was to have a
        split backward and has a whole one.
        """
        whole = [list(each) for each in self._splits.whole]
        return {"most_tapped": self._tapped.most, "whole_backwards": whole}

    @property
    def kept_bytes(self) -> int:
        """What the passes under way hold on the device; what only autograd holds is left out."""
        states = (*self._passes.values(), *self._together)
        storages = (each.untyped_storage() for state in states for each in state.tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """The error to end the run with, when memory is short after :meth:`free_memory` too."""
        stored = (layer for store in self.stores for _, layer in store.items())
        return explain_shortage(error, doing, self.placement.layer_use(stored), self.kept_bytes)

    def free_memory(self) -> None:
        """Give up every graph that a backward can do without, and those that only wait for one."""
        segments = (each for state in self._passes.values() for each in state.segments.values())
        for segment in segments if self.placement.may_lose_graphs else ():
            segment.drop_graph()
        owing = [(state, layer) for state in self._passes.values() for layer in state.owed]
        with suppress(torch.OutOfMemoryError):  # what is left then stays owed
            for state, layer in owing:
                state.settle(layer)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def evict(self, layer: LayerId) -> None:
        """Free a layer's device memory; graphs become valid again when the layer is loaded.

        Deferred gradients of its weights are computed first, because the gradients may be needed
        while the layer is away: for a global norm, or by another stage.
        """
        for state in self._passes.values():
            self._settle(state, layer)
        self.placement.evict(layer)

    def layer(self, layer: LayerId) -> StoredLayer:
        """A layer, made now if it has not been made yet."""
        return self.stores[layer.stream][layer]

    def label(self, layer: LayerId) -> str:
        """How messages call a layer; does not make it."""
        return self._workloads[layer.stream].space.label(layer.block, layer.candidate)

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Forget a subnet's tensors, and with the last pass of a step what they had in common."""
        state = self._passes.pop((stream, sequence_id), None)
        self._tapped.count(-state.num_tapped if state else 0)
        self._together.retire(stream, sequence_id)

    def _forward(
        self, state: PassState, task: Task, access: tuple[LayerId, Version, int]
    ) -> BlockResult | None:
        layer, version, option = access
        workload, block = self._workloads[task.stream], layer.block
        place, is_last = (task.stream, block), block == len(workload.space) - 1
        bound = self.layer(layer).bind(version)
        self._settle_before(layer, bound.module)
        inputs = (*state.inputs, *self._tapped.given(state, place, TapRole.INPUT))
        objective = self._objectives[task.stream].get(block)
        if isinstance(objective, LayerObjective):
            objective = objective.of_layer(bound.module)
        ending = self._ending(state, task, place, objective) if objective else None
        spec = self._spec(state, task, (block, option), ending)
        if not workload.is_trained:
            trains = workload.runs_in_training_mode
            outputs, statistics = forward_only(spec, bound, inputs, trains)
            state.inputs = self.placement.apart(layer, outputs)
            if workload.follows is not None:
                state.parameter_gradients[layer] = {}
                state.statistics[layer] = statistics
            self._tapped.keep(state, place, state.inputs)
            return None
        if self._steps[task.stream].is_probe(task.sequence_id):
            state.inputs = self.placement.apart(layer, probe(spec, bound, inputs))
            if ending is None:
                return None
            (loss,), state.inputs = state.inputs, ()
            return BlockResult(loss, metrics=ending.measured, batch=state.digest)
        # The last block's backward follows its forward at once, so its graph is kept.
        keeps_graph = is_last or not workload.recompute
        segment = Segment(spec, bound, inputs, keeps_graph, self.placement.may_lose_graphs)
        outputs = self.placement.apart(layer, segment.forward())
        state.segments[block] = segment
        if segment.statistics:
            state.statistics[layer] = segment.statistics
        state.inputs = ending.take_outputs() if ending else outputs
        self._tapped.keep(state, place, state.inputs)
        if ending is None:
            return None
        if is_last:
            state.inputs = ()
        result = self._begin_backward(state, task, block, outputs[0].detach())
        return result._replace(metrics=ending.measured, batch=state.digest)

    def _settle_before(self, layer: LayerId, module: nn.Module) -> None:
        """Compute what backwards have left of a layer whose next forward may change buffers.

        Gradients of its weights may depend on those. A backward of batch normalisation does not
        read its statistics.
        """
        owing = [state for state in self._passes.values() if layer in state.owed]
        if owing and other_buffers(module):
            for state in owing:
                state.settle(layer)

    def _begin_backward(
        self, state: PassState, task: Task, block: int, loss: torch.Tensor
    ) -> BlockResult:
        """The gradient of a loss, which the backward of its section begins with."""
        section, recipe = self._sections[task.stream][block], self._workloads[task.stream].recipe
        gradient = first_gradient(loss, recipe.nonfinite, task.sequence_id)
        is_joined = isinstance(self._objectives[task.stream][block], JoinedObjective)
        if gradient is not None and not is_joined:
            gradient = self._averaging[task.stream].part(gradient, task.sequence_id)
        state.gradients[section] = (gradient,)
        return BlockResult(loss, section)

    def _spec(
        self, state: PassState, task: Task, chosen: tuple[int, int], ending: Ending | None
    ) -> SegmentSpec:
        workload, steps = self._workloads[task.stream], self._steps[task.stream]
        key = (task.stream, *chosen)
        if key not in self._forms:
            recipe, kind = workload.definition.recipe, self.placement.torch_device.type
            obstacle = obstacle_to_edits(
                workload.definition.policy, recipe.steps.passes, workload.recompute,
                self.placement.shares_memory,
            )  # fmt: skip
            spec = spec_of(workload.space, recipe, *chosen, kind)._replace(edit_obstacle=obstacle)
            self._forms[key] = spec, workload.space.fields(chosen[0])
        spec, names = self._forms[key]
        step, number = steps.step(task.sequence_id), steps.pass_of(task.sequence_id)
        seed, is_teacher = workload.definition.seed, not workload.is_trained
        return spec._replace(
            seed=block_seed(seed, step, chosen[0], number, is_teacher),
            fields=tuple([self._field(state, task, name) for name in names]),
            finish=ending,
        )

    def _ending(self, state: PassState, task: Task, place: _Place, objective: Objective) -> Ending:
        if isinstance(objective, JoinedObjective):
            number = self._steps[task.stream].pass_of(task.sequence_id)
            objective = objective.of_pass(number)
        lessons = self._tapped.given(state, place, TapRole.LESSON)
        fields = tuple(self._field(state, task, name) for name in objective.fields)
        metrics = metrics_of(self._workloads[task.stream], place[1])
        return Ending(objective, lessons, fields, metrics)

    def _field(self, state: PassState, task: Task, name: str) -> torch.Tensor:
        """A batch field: one that has arrived, or from the batch, which is made when needed."""
        if name not in state.fields:
            number = self._steps[task.stream].batch(task.sequence_id)
            workload = self._workloads[task.stream]
            field = workload.field(state.made_batch(workload, number), name, number)
            state.fields[name] = self.placement.to_device(field)
        return state.fields[name]

    def _make_store(self, workload: Workload, restored: Restored | None) -> LayerStore:
        definition = workload.definition
        return LayerStore(
            workload.space, definition.seed, definition.recipe,
            self.memory_retry.wrapped(self.placement.adopt), build_policy(definition.policy),
            restored.restore if restored else None, self.placement.forget,
            workload.runs_in_training_mode,
        )  # fmt: skip

    def _pass(self, task: Task) -> PassState:
        key = (task.stream, task.sequence_id)
        state = self._passes.get(key)
        if state is None:
            state = self._passes[key] = PassState()
        return state
