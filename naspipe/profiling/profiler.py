"""A quick profile: the cost of every candidate of each kind of block on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from naspipe.config.blocks import Elastic
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.space import Space
from naspipe.jobs.losses import check_one_number, name_of_loss
from naspipe.jobs.workload import Workload, field_of
from naspipe.machine.cuda import open_clock
from naspipe.plan.costs import CostTable, LayerCost, first_of_kind
from naspipe.profiling.probes import ForwardProbe, Probe, TrainedProbe, measuring
from naspipe.streams.samplers import draw_subnets
from naspipe.worker.blocks.specs import Tensors, spec_of
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer

Costs = dict[tuple[int, int], LayerCost]
Floats = NDArray[np.float64]


def with_settings_between(space: Space, costs: Mapping[tuple[int, int], LayerCost]) -> Costs:
    """Add the costs of unmeasured settings of elastic layers with some measured settings.

    Each cost is fitted by a product of powers of the settings, such as widths and kernel sizes, and
    clamped to the range of measured costs.
    """
    found = dict(costs)
    for position, block in enumerate(space.blocks):
        if not isinstance(block, Elastic):
            continue
        known = [option for option in range(block.num_options) if (position, option) in costs]
        missing = [option for option in range(block.num_options) if option not in set(known)]
        if not missing or len(known) < 2:
            continue
        rows = np.array([costs[position, option] for option in known], dtype=np.float64)
        logs = np.log(np.maximum(rows, 1.0))
        factors, *_ = np.linalg.lstsq(_features(block, known), logs, rcond=None)
        guessed = np.exp(_features(block, missing) @ factors)
        fitted = np.clip(guessed, rows.min(axis=0), rows.max(axis=0))
        for option, row in zip(missing, fitted, strict=True):
            found[position, option] = LayerCost(*map(int, row))
    return found


def _features(block: Elastic, options: list[int]) -> Floats:
    """Return a row of logarithms per option; non-numeric or non-positive values use positions."""
    settings = [block.setting(option) for option in options]
    columns = [np.ones(len(options))]
    for name, values in block.settings.items():
        is_size = all(isinstance(each, int | float) and each > 0 for each in values)
        own = [each[name] for each in settings]
        sizes = [float(each if is_size else values.index(each) + 1) for each in own]
        columns.append(np.log(sizes))
    return np.column_stack(columns)


FIRST_CANDIDATES = 16
"""Number of evenly spaced candidates per kind of block that are always measured."""

MIN_ROUNDS = 3
"""Minimum number of rounds. Each round measures every candidate once, so that a temporary slowdown
affects all of them."""

MAX_ROUNDS = 9
"""Maximum number of rounds, so that a small space takes less than the time budget."""

TIME_BUDGET_SECONDS = 6.0
"""Time budget for the whole profile, unless the required measurements take longer."""

ROUNDS_SECONDS = 1.0
"""If all candidates are measured, only required rounds are started after this time."""

_ROUNDS_TO_JOIN = MIN_ROUNDS + 2
"""Cost of another candidate in rounds; making it and its first round count as one round each."""


def profile(
    workload: Workload, budget_seconds: float = TIME_BUDGET_SECONDS, device: str = "cpu"
) -> CostTable:
    """Measure the options of each kind of block on the stream's first batch.

    Some candidates of every kind are measured first, then as many others as the time allows. If
    there are no others, further rounds take at most a second, because the start of a run waits.

    The cost of an unmeasured candidate is the mean of its block; for a setting of an elastic layer,
    it is fitted. The measured layers are discarded.

    On a GPU, CUDA must have been initialized on that device; times are then measured between CUDA
    events.
    """
    begin = time.monotonic()
    deadline = begin + budget_seconds
    bench = _Bench(workload, torch.device(device))
    probes = bench.start()
    seconds = sum(_round(probes) for _ in range(MIN_ROUNDS)) / MIN_ROUNDS
    more = affordable(deadline - time.monotonic(), seconds / len(probes), len(probes))
    if bench.is_complete:
        deadline = min(deadline, begin + ROUNDS_SECONDS)
    probes.update(bench.extend(more))
    while _rounds(probes) < MIN_ROUNDS or (
        _rounds(probes) < MAX_ROUNDS and time.monotonic() + seconds < deadline
    ):
        seconds = _round(probes)
    measured = {key: probe.cost() for key, probe in probes.items()}
    places = {
        (index, option): (twin, option)
        for index, twin in enumerate(first_of_kind(workload.space))
        for option in range(workload.space.blocks[twin].num_options)
        if (twin, option) in measured
    }
    costs = {place: measured[key] for place, key in places.items()}
    whole = {place: why for place, key in places.items() if (why := probes[key].why_whole)}
    return CostTable(with_settings_between(workload.space, costs), whole)


def affordable(left_seconds: float, run_seconds: float, num_probes: int) -> int:
    """Return the number of further candidates that can be measured as often as the present ones.

    Args:
        left_seconds: remaining time; may be negative.
        run_seconds: time for measuring one candidate once.
        num_probes: number of present candidates, which are also measured in all further rounds.
    """
    return max(0, int(left_seconds / (run_seconds * _ROUNDS_TO_JOIN)) - num_probes)


def measuring_order(count: int) -> list[int]:
    """Return a permutation of a block's candidates whose first elements are evenly spread.

    Adjacent candidates are often similar (the same operation with another activation), so a few
    spread candidates are more representative than the first few.
    """
    order: dict[int, None] = {}
    parts = min(count, FIRST_CANDIDATES)
    while len(order) < count:
        order.update(dict.fromkeys(part * count // parts for part in range(parts)))
        parts = min(count, parts * 2)
    return list(order)


_Probes = dict[tuple[int, int], Probe]
"""Probes by the first block of a kind, and option."""


def _round(probes: _Probes) -> float:
    """Measure every probe once; return the elapsed seconds."""
    before = time.monotonic()
    for probe in probes.values():
        with measuring(probe.spec.label):
            probe.run()
    return time.monotonic() - before


def _rounds(probes: _Probes) -> int:
    return min(len(probe.samples) for probe in probes.values())


class _Bench:
    """Makes probes: the first candidates of every kind of block, then others."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        definition = workload.definition
        self._workload = workload
        self._device = device
        self._clock = open_clock(device)
        self._store = LayerStore(
            workload.space,
            definition.seed,
            definition.recipe,
            self._adopt,
            trains=workload.runs_in_training_mode,
        )
        batch = workload.data(definition.seed, 0)
        self._batch = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        tapped = workload.tapped(batch) if workload.tapped else ()  # from modules in host memory
        self._first = tuple(tensor.to(device) for tensor in tapped)
        """Input of the first block, in addition to fields of the batch."""
        self._made_ns: dict[LayerId, int] = {}
        self._inputs: dict[int, Tensors] = {}
        self._waiting: list[tuple[int, int]] = []

    def start(self) -> _Probes:
        """Make and warm up the first probes; the last of a kind makes inputs for the next kind."""
        if self._workload.space.decisions is not None:
            return self._start_with_subnets()
        blocks = self._workload.space.blocks
        probes: _Probes = {}
        waiting: list[Sequence[tuple[int, int]]] = []
        inputs = self._first
        for block in sorted(set(first_of_kind(self._workload.space))):
            self._inputs[block] = inputs
            order = [(block, number) for number in measuring_order(blocks[block].num_options)]
            for key in order[:FIRST_CANDIDATES]:
                probes[key], outputs = self._warm(*key)
            inputs = outputs
            waiting.append(order[FIRST_CANDIDATES:])
        # Take one of each kind in turn, so that no kind is omitted if time is short.
        self._waiting = [key for turn in zip_longest(*waiting) for key in turn if key is not None]
        return probes

    def _start_with_subnets(self) -> _Probes:
        """Make probes of a few whole subnets, if some candidates cannot follow some others."""
        space, seed = self._workload.space, self._workload.definition.seed
        probes: _Probes = {}
        for choices in draw_subnets("fair", space, seed, FIRST_CANDIDATES):
            inputs = self._first
            for key in enumerate(space.chain(choices)):
                self._inputs[key[0]] = inputs
                if key not in probes:
                    probes[key], inputs = self._warm(*key)
                else:
                    with measuring(probes[key].spec.label):
                        inputs = replace(probes[key], inputs=inputs).warm()
        return probes

    @property
    def is_complete(self) -> bool:
        return not self._waiting

    def extend(self, count: int) -> _Probes:
        joining, self._waiting = self._waiting[:count], self._waiting[count:]
        return {key: self._warm(*key)[0] for key in joining}

    def _warm(self, block: int, option: int) -> tuple[Probe, Tensors]:
        """Make a probe and run its first round; return it and the outputs of that round."""
        with measuring(self._workload.space.option_label(block, option)):
            probe = self._probe(block, option)
            return probe, probe.warm()

    def _probe(self, block: int, option: int) -> Probe:
        layer = LayerId(FIRST_STREAM, block, self._workload.space.blocks[block].candidate(option))
        before = self._clock.mark()
        stored = self._store.make(layer)
        (made_ns,) = self._clock.between_ns([before, self._clock.mark()])
        make_ns = self._made_ns.setdefault(layer, made_ns)
        is_last = block == len(self._workload.space) - 1
        keeps_graph = is_last or not self._workload.recompute
        space, recipe = self._workload.space, self._workload.definition.recipe
        finish = (
            partial(self._end, stored.module) if is_last and self._workload.is_trained else None
        )
        spec = spec_of(space, recipe, block, option, self._device.type)._replace(
            fields=tuple(field_of(self._batch, name, 0) for name in space.fields(block)),
            finish=finish,
        )
        inputs, clock = self._inputs[block], self._clock
        if self._workload.is_trained:
            return TrainedProbe(spec, stored, inputs, make_ns, clock, keeps_graph, option)
        return ForwardProbe(spec, stored, inputs, make_ns, clock, self._workload.follows)

    def _adopt(self, _: LayerId, stored: StoredLayer) -> None:
        if self._device.type != "cpu":
            stored.move(self._device)

    def _end(self, module: nn.Module, outputs: Tensors) -> Tensors:
        given = (field_of(self._batch, name, 0) for name in self._workload.loss_fields)
        loss = self._workload.objective_of(module)(*outputs, *given)
        check_one_number(f"loss {name_of_loss(self._workload.loss)}", loss)
        return (loss,)
