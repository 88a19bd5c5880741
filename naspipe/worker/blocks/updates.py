"""Updates of layers on one stage.

Gradients are accumulated over the passes of a step, modified by exchanges between stages such as
the clipping of a global norm, and applied by each layer's optimizer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.recipe import Recipe, learning_rate
from naspipe.config.rules import Follows
from naspipe.config.steps import Steps
from naspipe.engine.builder import GATES
from naspipe.engine.commands import Contribute, JoinSum, WriteLayer
from naspipe.engine.gates import NORMS, WriteGate
from naspipe.jobs.workload import Workload
from naspipe.machine.device_waits import Wait, on_host
from naspipe.worker.blocks.pass_state import PassState, StepStates
from naspipe.worker.blocks.ports import Exchange, GradientSum
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.joint_steps import JointSteps
from naspipe.worker.layers.kept_state import fold
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer, follow

SMALLEST = 1e-6
"""Added to a norm before dividing by it, as in ``torch.nn.utils.clip_grad_norm_``."""


def clip_factor(norms: Sequence[float], limit: float) -> float:
    """Return the factor that scales all gradients together to a norm of at most ``limit``.

    If a norm is NaN, the factor is ``math.nan``, because the sign of a NaN that Python computes
    from two others depends on how often the interpreter has executed the line.
    """
    total = 0.0
    for norm in norms:
        total += norm * norm
    return math.nan if math.isnan(total) else limit / (math.sqrt(total) + SMALLEST)


class NormExchange:
    """Implements ``clip_global_norm``: all stages send their norms and compute the same total."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._recipes = tuple(recipes)

    def contribution(
        self, stream: StreamId, gradients: Mapping[LayerId, Gradients]
    ) -> Mapping[str, float]:
        """Return the norm of each layer's gradients, computed over its parameters in order."""
        layers = [layer for layer in sorted(gradients) if gradients[layer]]
        norms = [
            torch.nn.utils.get_total_norm(list(gradients[layer].values())).double()
            for layer in layers
        ]
        found: list[float] = on_host(torch.stack(norms), Wait.NORM).tolist() if norms else []
        # The names sort by block and candidate.
        names = [f"{layer.block:08d}.{layer.candidate:08d}" for layer in layers]
        return dict(zip(names, found, strict=True))

    def apply(
        self,
        layer: LayerId,
        gradients: Gradients,
        contributions: Mapping[StageId, Mapping[str, Any]],
    ) -> None:
        """Scale a layer's gradients to limit the norm of all gradients of the step.

        The squares of the layers' norms are added in the order of block and candidate, in float64.
        """
        norms = {name: norm for told in contributions.values() for name, norm in told.items()}
        limit = self._recipes[layer.stream].clip_global_norm
        factor = clip_factor([norms[name] for name in sorted(norms)], limit)
        if not factor >= 1.0:  # also true for a NaN
            for gradient in gradients.values():
                gradient.mul_(factor)


EXCHANGES: dict[str, Callable[[Sequence[Recipe]], Exchange]] = {NORMS: NormExchange}
"""Exchanges by their names in :data:`naspipe.engine.builder.GATES`, called with all recipes."""


def register_exchange(
    name: str,
    gate: Callable[[Steps], WriteGate],
    effect: Callable[[Sequence[Recipe]], Exchange],
) -> None:
    """Register an exchange that updates wait for.

    ``gate`` decides when updates have to wait, and ``effect`` modifies their gradients.
    """
    GATES[name] = gate
    EXCHANGES[name] = effect


Passes = dict[tuple[StreamId, SequenceId], PassState]

_WRITE_COPIES, _STATE_COPIES = 5, 3  # multiples of a layer's parameters; see _write_bytes


class StageUpdates:
    """Applies updates, and holds the contributions of other stages to them.

    Args:
        passes: the passes in flight on this stage.
        together: the state shared by the passes of each step.
        make_room: frees the given number of bytes of device memory before a layer is changed.
        settle: computes the gradients of a layer that split backwards of a pass have deferred.
        exchanges: names of exchanges in addition to those that the recipes need.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        passes: Passes,
        together: StepStates,
        stores: Sequence[LayerStore],
        make_room: Callable[[int], None],
        settle: Callable[[PassState, LayerId], bool],
        exchanges: Sequence[str] = (),
    ) -> None:
        self._workloads = tuple(workloads)
        self._passes = passes
        self._together = together
        self._stores = tuple(stores)
        self._make_room, self._settle = make_room, settle
        recipes = [workload.definition.recipe for workload in workloads]
        self._steps = [recipe.steps for recipe in recipes]
        own = [NORMS] if any(steps.is_gated for steps in self._steps) else []
        self._exchanges = {name: EXCHANGES[name](recipes) for name in (*own, *exchanges)}
        self._joint = JointSteps()
        self._sums: dict[tuple[LayerId, Version], GradientSum] = {}
        """Sums over other stages' passes up to a version, until this stage adds its own passes."""

    def write(
        self, *commands: WriteLayer, begin: Callable[[WriteLayer], None] = lambda _: None
    ) -> int:
        """Apply updates with the gradients of their steps, or only add the gradients of a pass.

        ``begin`` is called before each. Return the nanoseconds spent on gradients that split
        backwards had deferred.
        """
        owed_ns = 0
        for command in commands:
            begin(command)
            layer, sequence_id = command.layer, command.sequence_id
            self._make_room(_write_bytes(self._stores[layer.stream][layer]))
            before_ns = time.monotonic_ns()
            if self._settle(self._passes[layer.stream, sequence_id], layer):
                owed_ns += time.monotonic_ns() - before_ns
            self._write(command)
        self._joint.take()
        return owed_ns

    def _write(self, command: WriteLayer) -> None:
        layer, sequence_id = command.layer, command.sequence_id
        stored = self._stores[layer.stream][layer]
        self._gather(layer, sequence_id)
        if not command.ends_step:
            stored.advance(sequence_id, command.base, command.keeps_base)
            return
        workload = self._workloads[layer.stream]
        step = self._together.of(layer.stream, sequence_id)
        gradients = step.total(layer)
        options = step.options.pop(layer, frozenset())
        del step.sums[layer]
        definition = workload.definition
        number = self._steps[layer.stream].step(sequence_id)
        base, keeps_base = command.base, command.keeps_base
        if workload.follows is None:
            for name, exchange in self._exchanges.items():
                told = step.contributions.get(name)
                if told is None:
                    raise InvariantError(
                        f"the update of layer {layer} began before the {name} of its step arrived"
                    )
                exchange.apply(layer, gradients, {stage: told[stage] for stage in sorted(told)})
            lr = learning_rate(definition.recipe, number, definition.steps)
            stored.write(gradients, sequence_id, base, keeps_base, number, lr, options, self._joint)
        else:  # a step towards the layer's source, which has already been stepped
            rule = workload.space.rules[layer.block]
            if not isinstance(rule, Follows):
                raise InvariantError(f"layer {layer} follows no other, its rule is {rule}")
            source = LayerId(StreamId(rule.stream), rule.block, layer.candidate)
            tau = workload.follows.rate(number, definition.steps)
            stored.advance(sequence_id, base, keeps_base)
            follow(stored, self._stores[rule.stream][source], workload.follows, tau)
        for _, statistics in sorted(step.statistics.pop(layer, {}).items()):
            if workload.follows is None or workload.follows.buffers == "own":
                fold(stored.module, statistics)

    def give_sum(self, layer: LayerId, version: Version) -> GradientSum:
        return self._together.give_sum(layer, SequenceId(version))

    def take_sum(self, layer: LayerId, version: Version, given: GradientSum) -> None:
        self._sums[layer, version] = given

    def join(self, command: JoinSum) -> None:
        layer, last = command.layer, SequenceId(command.version)
        self._make_room(_write_bytes(self._stores[layer.stream][layer]))
        given = self._sums.pop((layer, command.version))
        self._together.of(layer.stream, last).join(layer, given)
        if command.base is not None:
            stored = self._stores[layer.stream][layer]
            stored.advance(last, command.base, command.keeps_base)

    def contribution(self, command: Contribute) -> Mapping[str, Any]:
        """Return this stage's contribution to an exchange, once it has all gradients of the step.

        It is empty for an exchange without an effect on gradients, where only its arrival matters.
        """
        if command.exchange not in self._exchanges:
            return {}
        stream, first = command.stream, command.sequence_id
        steps = self._steps[stream]
        for number in range(first, steps.end(first)):
            sequence_id = SequenceId(number)
            state = self._passes.get((stream, sequence_id))
            for layer in list(state.parameter_gradients) if state else ():
                self._gather(layer, sequence_id)
        step = self._together.of(stream, first)
        ordered = {}
        for layer in [layer for layer in step.sums if layer not in command.lent]:
            total = step.total(layer)
            names = self._stores[layer.stream][layer].parameters
            ordered[layer] = {name: total[name] for name in names if name in total}
        return self._exchanges[command.exchange].contribution(stream, ordered)

    def take(
        self,
        exchange: str,
        stream: StreamId,
        first: SequenceId,
        sender: StageId,
        values: Mapping[str, Any],
    ) -> None:
        self._together.of(stream, first).contributions.setdefault(exchange, {})[sender] = values

    def _gather(self, layer: LayerId, sequence_id: SequenceId) -> None:
        """Add a pass's gradients to those of its step, unless an exchange has already done so."""
        state = self._passes[layer.stream, sequence_id]
        self._settle(state, layer)
        self._together.of(layer.stream, sequence_id).gather(layer, sequence_id, state)


def _write_bytes(stored: StoredLayer) -> int:
    """Return an upper bound on the device memory that an update may allocate.

    It consists of the sum of gradients and its modification by an exchange, a copy for readers of
    the older version, and two temporaries of the step; the optimizer state, if it does not exist
    yet; and a copy of that state, if a part of the layer is not stepped.
    """
    is_new = stored.optimizer is not None and not stored.optimizer.state
    more = _STATE_COPIES * (is_new + stored.is_sliced)
    return stored.parameter_bytes * (_WRITE_COPIES + more)
