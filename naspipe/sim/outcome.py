"""What a simulation says: one row of figures, the same for every command and script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from naspipe.config.errors import ConfigError
from naspipe.config.ids import AccessKind
from naspipe.planning.causal_bound import CausalBound, causal_bound, side_by_side
from naspipe.sim.access_table import AccessTable, Integers
from naspipe.sim.chains import Stream
from naspipe.sim.pipeline import Pipeline
from naspipe.sim.simulation import SimulatedRun

_FORWARD, _BACKWARD = (
    tuple(AccessKind).index(k) for k in (AccessKind.FORWARD, AccessKind.BACKWARD)
)


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage did and held."""

    busy: float
    """Share of the makespan, warm-up included."""
    layer_bytes: int
    """The most that its layers occupied; 0 where there is no memory budget."""
    activation_bytes: int
    """The most that the passes under way kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of one simulated run."""

    stages: int
    order: str
    window: int
    passes_per_second: float
    bubble_ratio: float
    bound: float
    """The least bubble ratio of any schedule: :class:`CausalBound`."""
    hit_rate: float
    stall_ratio: float
    makespan_seconds: float
    uses: tuple[StageUse, ...]

    @property
    def distance(self) -> float:
        """Bubble ratio above the bound; the warm-up is left out of the one and not of the other,
        so a short stream may have a little less than nothing."""
        return self.bubble_ratio - self.bound

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what reads them knows the speed by another name."""
        names = {"passes_per_second": "steps_per_second"}
        values = {names.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "distance": self.distance}


def bound_of(pipeline: Pipeline) -> CausalBound:
    """The causal bound of a pipeline's streams together.

    Raises:
        ConfigError: where costs are not known.
    """
    parts = []
    for stream in pipeline.streams:
        if stream.costs is None:
            raise ConfigError("causal bound: expected layers of known costs, found none")
        rules = stream.chain.rules
        parts.append(causal_bound(stream.subnets, rules, stream.costs, pipeline.steps))
    return side_by_side(parts)


class BackwardBounds(NamedTuple):
    """The causal bounds of one pipeline with either kind of backward."""

    whole: CausalBound
    split: CausalBound


def backward_bounds(pipeline: Pipeline) -> BackwardBounds | None:
    """The bounds with whole backwards and with ``backward=split``.

    Args:
        pipeline: whose backwards are whole.

    Returns:
        None where no run splits backwards, or where it is not known what their parts take.
    """
    if not pipeline.is_causal or not any(map(_knows_parts, pipeline.streams)):
        return None
    return BackwardBounds(bound_of(pipeline), bound_of(pipeline.splitting(math.inf)))


def _knows_parts(stream: Stream) -> bool:
    costs = stream.costs.costs.values() if stream.costs else ()
    return any(cost.split != cost for cost in costs)


def outcome_of(run: SimulatedRun, pipeline: Pipeline, bound: CausalBound) -> Outcome:
    """The figures of a pipeline's run; ``bound`` is :func:`bound_of` the pipeline."""
    summary = run.summary
    busy = _busy_shares(run.accesses, run.num_stages)
    held = _activation_peaks(run.accesses, run.num_stages, pipeline)
    layers = run.layer_bytes or (0,) * run.num_stages
    return Outcome(
        stages=run.num_stages,
        order=run.plan.order,
        window=run.plan.window,
        passes_per_second=summary.passes_per_second,
        bubble_ratio=summary.bubble_ratio,
        bound=bound.bubble(run.num_stages),
        hit_rate=summary.hit_rate,
        stall_ratio=summary.stall_ratio,
        makespan_seconds=summary.seconds,
        uses=tuple(map(StageUse, busy, layers, held)),
    )


def _busy_shares(table: AccessTable, num_stages: int) -> list[float]:
    start, end, stage = map(table.column, ("start_ns", "end_ns", "stage"))
    makespan = int(end.max()) - int(start.min())
    sums = np.bincount(stage, weights=end - start, minlength=num_stages)
    return [float(value) / makespan if makespan else 0.0 for value in sums]


def _activation_peaks(table: AccessTable, num_stages: int, pipeline: Pipeline) -> list[int]:
    """The most bytes held between a block's forward and its backward, on each stage.

    A pass without a backward holds nothing.
    """
    stage, kind = table.column("stage"), table.column("kind")
    passes = table.column("stream").astype(np.int64) << 40 | table.column("sequence_id")
    is_trained = np.isin(passes, passes[kind == _BACKWARD])
    held = np.where(is_trained, _activation_bytes(table, pipeline), 0)
    changes = np.where(kind == _FORWARD, held, np.where(kind == _BACKWARD, -held, 0))
    times = np.where(kind == _FORWARD, table.column("start_ns"), table.column("end_ns"))
    peaks = []
    for number in range(num_stages):
        mine = np.flatnonzero(stage == number)
        order = mine[np.lexsort((changes[mine], times[mine]))]
        peaks.append(int(np.cumsum(changes[order]).max(initial=0)))
    return peaks


def _options(
    table: AccessTable, columns: Sequence[Integers], number: int, stream: Stream
) -> Integers:
    """The column of candidates, with a stream's options in their place."""
    blocks = len(stream.chain.rules)
    chains = np.array([each.chain or (0,) * blocks for each in stream.subnets], dtype=np.int64)
    here = columns[0] == number
    found = columns[2].astype(np.int64)
    found[here] = chains[table.column("sequence_id")[here], columns[1][here]]
    return found


def _activation_bytes(table: AccessTable, pipeline: Pipeline) -> Integers:
    """Of each access's block and subnet."""
    columns = list(map(table.column, ("stream", "block", "candidate")))
    for number, stream in enumerate(pipeline.streams):
        if any(subnet.candidates for subnet in stream.subnets):
            columns[2] = _options(table, columns, number, stream)
    places = np.stack(columns)
    known, inverse = np.unique(places, axis=1, return_inverse=True)
    held = []
    for stream, block, candidate in known.T.tolist():
        costs = pipeline.streams[stream].costs
        held.append(costs.of(block, candidate).activation_bytes if costs else 0)
    return np.array(held, dtype=np.int64)[inverse.reshape(-1)]
