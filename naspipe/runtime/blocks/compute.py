"""What one stage holds of each pass, and the computing of its blocks and WRITEs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from naspipe.core.commands import WriteLayer
from naspipe.core.errors import ConfigError
from naspipe.core.ids import LayerId, SequenceId, StreamId, Version
from naspipe.core.learning_rate import learning_rate
from naspipe.core.task import Task, TaskKind
from naspipe.runtime.blocks.ending import Ending
from naspipe.runtime.blocks.nonfinite import first_gradient
from naspipe.runtime.blocks.pass_state import PassState, StepStates
from naspipe.runtime.blocks.segment import Gradient, Segment, SegmentSpec, Tensors
from naspipe.runtime.checkpoints.restored import Restored
from naspipe.runtime.devices.determinism import block_seed
from naspipe.runtime.devices.out_of_memory import DeviceFullError, explain_shortage
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.runtime.memory.placement import Placement
from naspipe.stage.builder import build_policy


class StageCompute:
    """Runs blocks and WRITEs in the order it is told; decides nothing.

    Args:
        workloads: of each stream.
        placement: where layers and tensors live.
        restored: of each stream, the checkpoint that it goes on from, if there is one.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        placement: Placement,
        restored: Sequence[Restored | None] = (),
    ) -> None:
        self.placement = placement
        self._workloads = tuple(workloads)
        self._ends = [Ending(each.loss, each.definition.recipe) for each in workloads]
        sources = tuple(restored) or (None,) * len(workloads)
        self.stores = tuple(map(self._make_store, workloads, sources))
        """The layers of each stream."""
        self._steps = tuple(workload.definition.recipe.steps for workload in workloads)
        self._together = StepStates(self._steps)
        self._passes: dict[tuple[StreamId, SequenceId], PassState] = {}

    def accept(self, task: Task, tensors: tuple[Gradient, ...]) -> None:
        """Take the input of a task: leaf tensors for a forward, gradients for a backward."""
        state = self._pass(task)
        moved = tuple(t if t is None else self.placement.receive(t) for t in tensors)
        if task.kind is TaskKind.FORWARD:
            state.inputs = tuple(tensor for tensor in moved if tensor is not None)
        else:
            state.gradients = moved

    def output(self, task: Task) -> tuple[Gradient, ...]:
        """What the finished task hands on: leaf tensors, or gradients (absent ones as None).

        They are on the stage's device: the transport takes them from there.
        """
        state = self._pass(task)
        if task.kind is TaskKind.BACKWARD:
            return state.gradients
        outputs, state.inputs = state.inputs, ()
        return outputs

    def run_block(self, task: Task, layer: LayerId, version: Version) -> torch.Tensor | None:
        """Compute one block of a task; returns the loss where a forward reaches it.

        Raises:
            torch.OutOfMemoryError: when memory is short; nothing is changed then.
        """
        state = self._pass(task)
        if task.kind is TaskKind.FORWARD:
            loss = self._forward(state, task, layer, version)
            self.placement.synchronize()
            return loss
        segment = state.segments[layer.block]
        try:
            gradients = segment.backward(state.gradients)
        except torch.OutOfMemoryError:
            segment.undo_backward()
            raise
        del state.segments[layer.block]
        state.gradients = gradients
        state.parameter_gradients[layer] = segment.take_gradients()
        self.placement.synchronize()
        return None

    @property
    def kept_bytes(self) -> int:
        """What the passes under way hold on the device; what only autograd holds is left out."""
        states = (*self._passes.values(), *self._together)
        kept = (tensor for state in states for tensor in state.tensors())
        storages = (tensor.untyped_storage() for tensor in kept)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        """The error to end the run with, when memory is short after :meth:`free_memory` too."""
        stored = (layer for store in self.stores for _, layer in store.items())
        layers = self.placement.layer_use(stored)
        return explain_shortage(error, doing, layers, self.kept_bytes)

    def free_memory(self) -> None:
        """Give up every graph that a backward can do without."""
        if self.placement.may_lose_graphs:
            for state in self._passes.values():
                for segment in state.segments.values():
                    segment.drop_graph()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def evict(self, layer: LayerId) -> None:
        """Free a layer's device memory; passes that used it will compute its forward again."""
        for state in self._passes.values():
            segment = state.segments.get(layer.block)
            if segment is not None and state.layers[layer.block] == layer:
                segment.drop_graph()
        self.placement.evict(layer)

    def write(self, command: WriteLayer) -> None:
        """Apply a WRITE with the gradients of its step, or only add a pass's to them."""
        layer, sequence_id = command.layer, command.sequence_id
        definition, steps = self._workloads[layer.stream].definition, self._steps[layer.stream]
        self._gather(layer, sequence_id)
        if not command.ends_step:
            self.layer(layer).advance(sequence_id, command.base, command.keeps_base)
            return
        step = self._together.of(layer.stream, sequence_id)
        gradients = step.gradients.pop(layer)
        if steps.is_gated:
            step.clip(gradients, definition.recipe.clip_global_norm)
        lr = learning_rate(definition.recipe, steps.step(sequence_id), definition.steps)
        base, keeps_base = command.base, command.keeps_base
        self.layer(layer).write(gradients, sequence_id, base, keeps_base, lr)
        self.placement.synchronize()

    def norms(self, stream: StreamId, first: SequenceId) -> dict[tuple[int, int], float]:
        """The norm of each layer's gradients in a step, all of which are there on this stage."""
        for number in range(first, self._steps[stream].end(first)):
            sequence_id = SequenceId(number)
            for layer in list(self._passes[stream, sequence_id].parameter_gradients):
                self._gather(layer, sequence_id)
        step = self._together.of(stream, first)
        return step.measure({layer: self.layer(layer).parameters for layer in step.gradients})

    def take_norms(
        self, stream: StreamId, first: SequenceId, norms: Mapping[tuple[int, int], float]
    ) -> None:
        """Keep what a stage has told of a step's gradients until the step's WRITEs."""
        self._together.of(stream, first).norms.update(norms)

    def layer(self, layer: LayerId) -> StoredLayer:
        """A layer, made now if it has not been made yet."""
        return self.stores[layer.stream][layer]

    def label(self, layer: LayerId) -> str:
        """How messages call a layer; does not make it."""
        return self._workloads[layer.stream].space.label(layer.block, layer.candidate)

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Forget a subnet's tensors, and with the last pass of a step what they had in common."""
        self._passes.pop((stream, sequence_id), None)
        self._together.retire(stream, sequence_id)

    def _forward(
        self, state: PassState, task: Task, layer: LayerId, version: Version
    ) -> torch.Tensor | None:
        workload = self._workloads[task.stream]
        space, definition = workload.space, workload.definition
        steps, number = self._steps[task.stream], task.sequence_id
        block = layer.block
        is_last = block == len(space) - 1
        spec = SegmentSpec(
            label=self.label(layer),
            rule=space.blocks[block].rule,
            seed=block_seed(definition.seed, steps.step(number), block, steps.pass_of(number)),
            precision=definition.recipe.precision,
            device_type=self.placement.torch_device.type,
            fields=tuple(self._field(state, task, name) for name in space.fields(block)),
            finish=self._with_loss(state, task) if is_last else None,
        )
        # The last block's backward follows its forward at once, so its graph is kept.
        keeps_graph = is_last or not workload.recompute
        bound = self.layer(layer).bind(version)
        may_lose_graph = self.placement.may_lose_graphs
        segment = Segment(spec, bound, state.inputs, keeps_graph, may_lose_graph)
        state.inputs = segment.forward()
        state.segments[block] = segment
        state.layers[block] = layer
        if not is_last:
            return None
        (loss,), state.inputs = state.inputs, ()
        loss = loss.detach()
        gradient = first_gradient(loss, definition.recipe.nonfinite, number)
        if gradient is not None and steps.loss_parts > 1:
            gradient = gradient / steps.loss_parts
        state.gradients = (gradient,)
        return loss

    def _with_loss(self, state: PassState, task: Task) -> Callable[[Tensors], Tensors]:
        target = self._field(state, task, "target")
        step = self._together.of(task.stream, task.sequence_id)
        number = self._steps[task.stream].pass_of(task.sequence_id)
        return self._ends[task.stream].of(number, step, target)

    def _field(self, state: PassState, task: Task, name: str) -> torch.Tensor:
        if state.batch is None:
            workload = self._workloads[task.stream]
            number = self._steps[task.stream].batch(task.sequence_id)
            state.batch = workload.data(workload.definition.seed, number)
        if name not in state.fields:
            field = field_of(state.batch, name, task.sequence_id)
            state.fields[name] = self.placement.to_device(field)
        return state.fields[name]

    def _make_store(self, workload: Workload, restored: Restored | None) -> LayerStore:
        definition = workload.definition
        return LayerStore(
            workload.space,
            definition.seed,
            definition.recipe,
            self.placement.adopt,
            build_policy(definition.policy).keeps_versions,
            restored.restore if restored else None,
            self.placement.forget,
        )

    def _gather(self, layer: LayerId, sequence_id: SequenceId) -> None:
        """Add a pass's gradients to its step's, unless that was done for the step's norms."""
        state = self._passes[layer.stream, sequence_id]
        gradients = state.parameter_gradients.pop(layer, None)
        if gradients is not None:
            self._together.of(layer.stream, sequence_id).add(layer, gradients)

    def _pass(self, task: Task) -> PassState:
        key = (task.stream, task.sequence_id)
        state = self._passes.get(key)
        if state is None:
            state = self._passes[key] = PassState()
        return state


def field_of(batch: Mapping[str, Any], name: str, sequence_id: int) -> torch.Tensor:
    """A batch's field.

    Raises:
        ConfigError: when the batch has no such tensor.
    """
    value = batch.get(name)
    if not isinstance(value, torch.Tensor):
        raise ConfigError(
            f"batch {sequence_id}: expected a tensor called {name!r}, found "
            f"{', '.join(sorted(batch)) or 'an empty batch'}"
        )
    return value
