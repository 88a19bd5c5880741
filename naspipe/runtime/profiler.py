"""A quick profile: what a few candidates of every kind of block cost on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import torch

from naspipe.core.ids import FIRST_STREAM, LayerId, SequenceId
from naspipe.core.space import Block
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.compute import Workload, field_of
from naspipe.runtime.layer_store import LayerStore, StoredLayer
from naspipe.runtime.segment import Segment, SegmentSpec, Tensors

MAX_CANDIDATES = 16
"""Candidates measured per kind of block, evenly spaced."""

_ROUNDS = 5
"""Each measures every candidate once, so that a slow moment of the machine hits all alike."""


@dataclass(slots=True)
class _Probe:
    """One candidate to measure: forward, backward and WRITE of every round, in nanoseconds."""

    spec: SegmentSpec
    stored: StoredLayer
    inputs: Tensors
    keeps_graph: bool
    make_ns: int
    samples: list[list[int]] = field(default_factory=list)

    def run(self) -> Tensors:
        """Measure one round; returns the outputs."""
        bound = self.stored.bind(self.stored.version)
        segment = Segment(self.spec, bound, self.inputs, self.keeps_graph)
        times = [time.perf_counter_ns()]
        outputs = segment.forward()
        times.append(time.perf_counter_ns())
        segment.backward(tuple(torch.ones_like(output) for output in outputs))
        times.append(time.perf_counter_ns())
        version = SequenceId(len(self.samples))
        self.stored.write(segment.take_gradients(), version, self.stored.version, False, 0.0)
        times.append(time.perf_counter_ns())
        self.samples.append([after - before for before, after in pairwise(times)])
        return outputs

    def cost(self) -> LayerCost:
        """Medians over the rounds, the first one, which warms up, left out."""
        forward, backward, write = zip(*self.samples[1:], strict=True)
        return LayerCost(
            int(median(forward)), int(median(backward)), int(median(write)), self.make_ns
        )


def profile(workload: Workload) -> CostTable:
    """Measure each kind of block on the stream's first batch.

    Blocks of one ``kind`` are measured once. Trains nothing: the layers measured are thrown
    away.
    """
    space = workload.space
    store = LayerStore(space, workload.definition.seed, workload.definition.recipe)
    twins: dict[str, int] = {}
    twin_of: list[int] = []
    probes: dict[tuple[int, int], _Probe] = {}
    inputs: Tensors = ()
    for index, block in enumerate(space.blocks):
        kind = block.kind if isinstance(block, Block) else None
        twin = index if kind is None else twins.setdefault(kind, index)
        twin_of.append(twin)
        if twin == index:
            for candidate in _spread(len(block.candidates)):
                probe = _probe(workload, store, index, candidate, inputs)
                probes[index, candidate] = probe
                outputs = probe.run()
            inputs = outputs
    for _ in range(_ROUNDS):
        for probe in probes.values():
            probe.run()
    measured = {key: probe.cost() for key, probe in probes.items()}
    return CostTable(
        {
            (index, candidate): measured[twin, candidate]
            for index, twin in enumerate(twin_of)
            for candidate in _spread(len(space.blocks[twin].candidates))
        }
    )


def _spread(count: int) -> list[int]:
    measured = min(count, MAX_CANDIDATES)
    return [index * count // measured for index in range(measured)]


def _probe(
    workload: Workload, store: LayerStore, index: int, candidate: int, inputs: Tensors
) -> _Probe:
    space, definition = workload.space, workload.definition
    batch = workload.data(definition.seed, 0)
    is_last = index == len(space) - 1
    spec = SegmentSpec(
        label=space.label(index, candidate),
        rule=space.blocks[index].rule,
        seed=0,
        precision=definition.recipe.precision,
        fields=tuple(field_of(batch, name, 0) for name in space.fields(index)),
        finish=(lambda outputs: (workload.loss(*outputs, batch["target"]),)) if is_last else None,
    )
    before_ns = time.perf_counter_ns()
    stored = store.make(LayerId(FIRST_STREAM, index, candidate))
    make_ns = time.perf_counter_ns() - before_ns
    return _Probe(spec, stored, inputs, is_last or not workload.recompute, make_ns)
