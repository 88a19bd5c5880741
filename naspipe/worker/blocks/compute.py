"""Compute the blocks of one stage, and hold the tensors of its passes.

:class:`StageCompute` runs the blocks of a training run in the order that the driver commands. It
keeps the tensors of each pass and step, creates batches and their fields on demand, computes
losses, and frees memory when the device runs out of it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

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
    """Scales the first gradient of each pass's backward according to the averaging of the steps.

    Items are counted from the data alone, so that groups need not communicate. This also creates
    the batches of other groups, unless the data have a method ``items(seed, number)``.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._steps = workload.definition.recipe.steps
        self._count = lru_cache(4 * self._steps.passes)(self._count_items)

    def part(self, gradient: torch.Tensor, sequence_id: int) -> torch.Tensor:
        """Scale the gradient of a pass's loss by the weight of the pass in the step's loss."""
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
    """Return the gradient that starts a backward; None for a step that changes nothing.

    ``nonfinite`` is the recipe's setting for a loss that is not finite: ``stop``, ``skip`` or
    ``keep``.
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
    """Return the number of target values that a loss averages over, without ignored ones."""
    ignored = getattr(loss, "ignore_index", None)
    if ignored is None or target.is_floating_point():
        return target.numel()
    return int((target != ignored).sum())


class StageCompute:
    """Runs the blocks of a training run in the commanded order, without making decisions.

    Args:
        workloads: the workload of each stream.
        placement: places layers and tensors on the device.
        restored: for each stream, the checkpoint that it continues from, or None.
        wiring: how the streams are joined.
        splits: for each stream, the pairs (block, option) whose backwards are split.
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
        self.stores = tuple(
            LayerStore(
                workload.space,
                workload.definition.seed,
                workload.definition.recipe,
                self.memory_retry.wrapped(placement.adopt),
                build_policy(workload.definition.policy),
                source.restore if source else None,
                placement.forget,
                workload.runs_in_training_mode,
            )
            for workload, source in zip(workloads, restored or [None] * len(workloads), strict=True)
        )
        """The layers of each stream."""
        self._steps = tuple(workload.definition.recipe.steps for workload in workloads)
        self._together = StepStates(self._steps)
        self._averaging = tuple(map(Averaging, workloads))
        self._passes: Passes = {}
        room = self.memory_retry.wrapped(placement.make_room)
        self._settle = self.memory_retry.wrapped(PassState.settle)
        self.updates = StageUpdates(
            workloads,
            self._passes,
            self._together,
            self.stores,
            room,
            self._settle,
            wiring.exchanges,
        )
        """Applies updates to these layers."""
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
        """Sections of each stream, by the block in which a backward begins."""
        chosen = splits or [()] * len(workloads)
        self._splits = Splits(chosen, [first_of_kind(each.space) for each in workloads])
        self._specs: dict[tuple[StreamId, int, int], tuple[SegmentSpec, tuple[str, ...]]] = {}
        """Specification and batch fields shared by all passes of a stream, block and option."""

    def accept(self, task: Task, tensors: tuple[Gradient, ...], name: InputName = CHAIN) -> None:
        """Store an input of a task: leaf tensors for a forward, gradients for a backward."""
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
        """Return a task's output: leaf tensors, or gradients (None for absent ones).

        They are on the stage's device, from where the transport sends them.
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
        """Compute one block of a task with one of its options, and return the loss if any.

        Raises:
            torch.OutOfMemoryError: if memory runs out; no state has changed in this case.
        """
        state = self._pass(task)
        if task.kind is TaskKind.FORWARD:
            loss = self._forward(state, task, layer, version, option)
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

    def _forward(
        self, state: PassState, task: Task, layer: LayerId, version: Version, option: int
    ) -> BlockResult | None:
        stream, block = task.stream, layer.block
        workload, steps = self._workloads[stream], self._steps[stream]
        place, is_last = (stream, block), block == len(workload.space) - 1
        bound = self.layer(layer).bind(version)
        # Deferred gradients may depend on buffers that a forward changes. A backward of batch
        # normalisation does not read its running statistics.
        owing = [each for each in self._passes.values() if layer in each.owed]
        if owing and other_buffers(bound.module):
            for each in owing:
                each.settle(layer)
        inputs = (*state.inputs, *self._tapped.given(state, place, TapRole.INPUT))
        objective = self._objectives[stream].get(block)
        if isinstance(objective, LayerObjective):
            objective = objective.of_layer(bound.module)
        ending = self._ending(state, task, block, objective) if objective else None
        spec = self._spec(state, task, block, option, ending)
        if not workload.is_trained:
            outputs, statistics = forward_only(spec, bound, inputs, workload.runs_in_training_mode)
            state.inputs = self.placement.apart(layer, outputs)
            if workload.follows is not None:
                state.parameter_gradients[layer] = {}
                state.statistics[layer] = statistics
            self._tapped.keep(state, place, state.inputs)
            return None
        if steps.is_probe(task.sequence_id):
            state.inputs = self.placement.apart(layer, probe(spec, bound, inputs))
            if ending is None:
                return None
            (loss,), state.inputs = state.inputs, ()
            return BlockResult(loss, metrics=ending.measured, batch=state.digest)
        # The last block's backward immediately follows its forward, so its graph is kept.
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
        loss = outputs[0].detach()
        section = self._sections[stream][block]
        gradient = first_gradient(loss, workload.recipe.nonfinite, task.sequence_id)
        is_joined = isinstance(self._objectives[stream][block], JoinedObjective)
        if gradient is not None and not is_joined:
            gradient = self._averaging[stream].part(gradient, task.sequence_id)
        state.gradients[section] = (gradient,)
        return BlockResult(loss, section, ending.measured, state.digest)

    def _spec(
        self, state: PassState, task: Task, block: int, option: int, ending: Ending | None
    ) -> SegmentSpec:
        workload, steps = self._workloads[task.stream], self._steps[task.stream]
        definition, key = workload.definition, (task.stream, block, option)
        if key not in self._specs:
            recipe, device = definition.recipe, self.placement.torch_device.type
            obstacle = obstacle_to_edits(
                definition.policy,
                recipe.steps.passes,
                workload.recompute,
                self.placement.shares_memory,
            )
            spec = spec_of(workload.space, recipe, block, option, device)
            self._specs[key] = spec._replace(edit_obstacle=obstacle), workload.space.fields(block)
        spec, names = self._specs[key]
        step, number = steps.step(task.sequence_id), steps.pass_of(task.sequence_id)
        return spec._replace(
            seed=block_seed(definition.seed, step, block, number, not workload.is_trained),
            fields=tuple([self._field(state, task, name) for name in names]),
            finish=ending,
        )

    def _ending(self, state: PassState, task: Task, block: int, objective: Objective) -> Ending:
        if isinstance(objective, JoinedObjective):
            number = self._steps[task.stream].pass_of(task.sequence_id)
            objective = replace(objective, number=number)
        lessons = self._tapped.given(state, (task.stream, block), TapRole.LESSON)
        fields = tuple(self._field(state, task, name) for name in objective.fields)
        return Ending(objective, lessons, fields, metrics_of(self._workloads[task.stream], block))

    def _field(self, state: PassState, task: Task, name: str) -> torch.Tensor:
        """Return a batch field that has arrived, or take it from the batch."""
        if name not in state.fields:
            number = self._steps[task.stream].batch(task.sequence_id)
            workload = self._workloads[task.stream]
            field = workload.field(state.made_batch(workload, number), name, number)
            state.fields[name] = self.placement.to_device(field)
        return state.fields[name]

    def _pass(self, task: Task) -> PassState:
        key = (task.stream, task.sequence_id)
        state = self._passes.get(key)
        if state is None:
            state = self._passes[key] = PassState()
        return state

    @property
    def measured(self) -> dict[str, Any]:
        """Figures about the blocks that the stage reports at its end.

        ``most_tapped``: maximum number of tapped outputs held at the same time; see ``Tap``.
        ``whole_backwards``: stream, block, option and reason of each candidate whose backward
        should have been split but is not.
        """
        whole = [list(each) for each in self._splits.whole]
        return {"most_tapped": self._tapped.most, "whole_backwards": whole}

    @property
    def kept_bytes(self) -> int:
        states = (*self._passes.values(), *self._together)
        storages = (each.untyped_storage() for state in states for each in state.tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """Return the error to raise if memory runs out even after :meth:`free_memory`."""
        stored = (layer for store in self.stores for _, layer in store.items())
        return explain_shortage(error, doing, self.placement.layer_use(stored), self.kept_bytes)

    def free_memory(self) -> None:
        """Drop all graphs that can be recomputed, and compute deferred gradients."""
        segments = (each for state in self._passes.values() for each in state.segments.values())
        for segment in segments if self.placement.may_lose_graphs else ():
            segment.drop_graph()
        owing = [(state, layer) for state in self._passes.values() for layer in state.owed]
        with suppress(torch.OutOfMemoryError):  # the remaining gradients stay deferred
            for state, layer in owing:
                state.settle(layer)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def evict(self, layer: LayerId) -> None:
        """Free a layer's device memory; graphs become valid again when the layer is loaded.

        Deferred gradients of its weights are computed first, because a global norm or another stage
        may need them before the layer is loaded again.
        """
        for state in self._passes.values():
            self._settle(state, layer)
        self.placement.evict(layer)

    def layer(self, layer: LayerId) -> StoredLayer:
        return self.stores[layer.stream][layer]

    def label(self, layer: LayerId) -> str:
        """Return a layer's name for messages, without creating the layer."""
        return self._workloads[layer.stream].space.label(layer.block, layer.candidate)

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Drop a subnet's tensors, and after the last pass of a step the step's state."""
        state = self._passes.pop((stream, sequence_id), None)
        self._tapped.count(-state.num_tapped if state else 0)
        self._together.retire(stream, sequence_id)
