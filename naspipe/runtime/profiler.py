"""A quick profile: what a few candidates of every kind of block cost on this machine."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

import torch

from naspipe.core.ids import LayerId, SequenceId, StreamId
from naspipe.core.space import Block
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.compute import Workload, field_of
from naspipe.runtime.layer_store import LayerStore
from naspipe.runtime.segment import Segment, SegmentSpec, Tensors

MAX_CANDIDATES = 16
"""Candidates measured per kind of block, evenly spaced."""

_REPETITIONS = 3
_STREAM = StreamId(0)


def profile(workload: Workload) -> CostTable:
    """Measure forward, backward and WRITE of each kind of block on the stream's first batch.

    Blocks of one ``kind`` are measured once. Trains nothing: the layers measured are thrown
    away.
    """
    space = workload.space
    store = LayerStore(space, workload.definition.seed, workload.definition.recipe)
    costs: dict[tuple[int, int], LayerCost] = {}
    first_of_kind: dict[str, int] = {}
    inputs: Tensors = ()
    for index, block in enumerate(space.blocks):
        kind = block.kind if isinstance(block, Block) else None
        twin = index if kind is None else first_of_kind.setdefault(kind, index)
        if twin != index:
            for candidate in _spread(len(block.candidates)):
                costs[index, candidate] = costs[twin, candidate]
            continue
        outputs: Tensors = ()
        for candidate in _spread(len(block.candidates)):
            layer = LayerId(_STREAM, index, candidate)
            costs[index, candidate], outputs = _measure(workload, store, layer, inputs)
        inputs = outputs
    return CostTable(costs)


def _spread(count: int) -> list[int]:
    measured = min(count, MAX_CANDIDATES)
    return [index * count // measured for index in range(measured)]


def _measure(
    workload: Workload, store: LayerStore, layer: LayerId, inputs: Tensors
) -> tuple[LayerCost, Tensors]:
    space, definition = workload.space, workload.definition
    batch = workload.data(definition.seed, 0)
    is_last = layer.block == len(space) - 1
    spec = SegmentSpec(
        label=space.label(layer.block, layer.candidate),
        rule=space.blocks[layer.block].rule,
        seed=0,
        precision=definition.recipe.precision,
        fields=tuple(field_of(batch, name, 0) for name in space.fields(layer.block)),
        finish=(lambda outputs: (workload.loss(*outputs, batch["target"]),)) if is_last else None,
    )
    stored = store[layer]
    samples = []
    outputs: Tensors = ()
    for repetition in range(_REPETITIONS):
        segment = Segment(
            spec, stored.bind(stored.version), inputs, is_last or not workload.recompute
        )
        times = [time.perf_counter_ns()]
        outputs = segment.forward()
        times.append(time.perf_counter_ns())
        segment.backward(tuple(torch.ones_like(output) for output in outputs))
        times.append(time.perf_counter_ns())
        stored.write(segment.take_gradients(), SequenceId(repetition), stored.version, False, 0.0)
        times.append(time.perf_counter_ns())
        samples.append([after - before for before, after in pairwise(times)])
    forward_ns, backward_ns, write_ns = (
        int(median(column)) for column in zip(*samples, strict=True)
    )
    return LayerCost(forward_ns, backward_ns, write_ns), outputs
