"""What a device's memory admits: how large a batch, and how many subnets under way.

A stage holds layers, and for each subnet under way what its passes keep until their backward.
Systems differ in both: those that swap hold a few subnets' layers, others the whole supernet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId
from naspipe.config.partition import Partition
from naspipe.plan.partitions import balanced_partition


class Footprint(NamedTuple):
    """Bytes of one layer: its state, and what each sample of a batch adds."""

    state_bytes: int
    """Parameters, buffers and optimizer state."""
    parameter_bytes: int
    """Also those of its gradients, and of one version of it."""
    input_bytes: float
    """Per sample: tensors handed to the block that end there; all that recompute keeps of them."""
    passed_bytes: float
    """Per sample: tensors that the block hands on as they came: kept once on a stage."""
    saved_bytes: float
    """Per sample: what autograd keeps beside them until the backward."""


@dataclass(frozen=True, slots=True)
class FootprintTable:
    """Footprints of every layer of a space; blocks of one kind share their rows."""

    twins: tuple[int, ...]
    """See :func:`naspipe.plan.costs.first_of_kind`."""
    rows: Mapping[int, tuple[Footprint, ...]]
    """By the first block of each kind: one per candidate."""

    def candidates(self, block: int) -> tuple[Footprint, ...]:
        """All candidates of a block of the chain."""
        return self.rows[self.twins[block]]

    def supernet_bytes(self, block: int) -> int:
        """State of all candidates of a block."""
        return sum(row.state_bytes for row in self.candidates(block))

    def mean(self, block: int) -> Footprint:
        """A subnet's layer in a block, on average over the candidates."""
        rows = self.candidates(block)
        state, parameters, inputs, passed, saved = (
            sum(column) / len(rows) for column in zip(*rows, strict=True)
        )
        return Footprint(round(state), round(parameters), inputs, passed, saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How a pipelined system uses a stage's memory."""

    name: str
    subnets_on_device: float | None
    """Layers that stay on the device, in subnets; None for the whole supernet."""
    recomputes: bool
    """Keep only each block's inputs."""
    stashes: bool = False
    """Keep the version that each subnet under way has read."""
    alternates: bool = False
    """One forward, one backward: a stage has no more under way than there are stages from it
    to the last one."""

    def under_way(self, in_flight: int, stages_left: int) -> int:
        """Subnets that a stage keeps the passes of."""
        return min(in_flight, stages_left) if self.alternates else in_flight


SYSTEMS = (
    System(name="naspipe", subnets_on_device=3, recomputes=True),
    System(name="vpipe", subnets_on_device=2, recomputes=True),
    System(name="gpipe", subnets_on_device=None, recomputes=True),
    System(
        name="pipedream", subnets_on_device=None, recomputes=False, stashes=True, alternates=True
    ),
)
"""NASPipe holds the subnet that executes, the one leaving and the one coming; VPipe one that
executes and one that comes; GPipe and PipeDream do not swap."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """One stage's memory under a system, as a line: bytes = fixed + batch * per_sample."""

    fixed_bytes: float
    """Layers, one layer's gradients, and stashed versions."""
    kept_bytes: float
    """Per sample and subnet under way."""
    working_bytes: float
    """Per sample: the block under computation, its graph and gradients."""

    def needed_bytes(self, batch: int, in_flight: int) -> float:
        """What the stage needs with so many samples and subnets under way."""
        return self.fixed_bytes + batch * (in_flight * self.kept_bytes + self.working_bytes)


def stage_loads(
    table: FootprintTable, system: System, num_stages: int, in_flight: int, batch: int = 0
) -> list[StageLoad]:
    """Every stage's memory under a system, cut where that balances it at this batch size."""
    weights = [
        _layer_bytes(table, system, block, in_flight)
        + batch * in_flight * _kept_bytes(system, table.mean(block))
        for block in range(len(table.twins))
    ]
    partition = balanced_partition(weights, num_stages)
    return [
        _load(table, system, partition, StageId(stage), in_flight) for stage in range(num_stages)
    ]


def largest_batch(
    table: FootprintTable,
    system: System,
    *,
    num_stages: int,
    in_flight: int,
    budget_bytes: float,
    sizes: Sequence[int],
) -> int:
    """The largest of these batch sizes that fits every stage; 0 when none does.

    Args:
        table: of the space.
        system: how memory is used.
        num_stages: of the pipeline.
        in_flight: subnets under way, each of which keeps its passes on every stage.
        budget_bytes: of one device, less what the driver and libraries take.
        sizes: batch sizes to choose from.
    """
    for batch in sorted(sizes, reverse=True):
        if fits(table, system, num_stages, in_flight, batch, budget_bytes):
            return batch
    return 0


def fits(
    table: FootprintTable,
    system: System,
    num_stages: int,
    in_flight: int,
    batch: int,
    budget_bytes: float,
) -> bool:
    """Whether every stage has room for so many samples and subnets under way."""
    loads = stage_loads(table, system, num_stages, in_flight, batch)
    return all(
        load.needed_bytes(batch, system.under_way(in_flight, num_stages - stage)) <= budget_bytes
        for stage, load in enumerate(loads)
    )


def most_in_flight(
    table: FootprintTable, system: System, *, num_stages: int, batch: int, budget_bytes: float
) -> int:
    """The most subnets that can be under way with batches of this size; 0 when not even one.

    Raises:
        ConfigError: for a batch below 1.
    """
    if batch < 1:
        raise ConfigError(f"batch: expected 1 or more samples, found {batch}")
    count = 0
    while count < _PLENTY and fits(table, system, num_stages, count + 1, batch, budget_bytes):
        count += 1
    return count


_PLENTY = 1024
"""More subnets under way than any pipeline can use."""


def _layer_bytes(table: FootprintTable, system: System, block: int, in_flight: int) -> float:
    """What a block's layers hold on the device."""
    mean = table.mean(block)
    if system.subnets_on_device is None:
        held: float = table.supernet_bytes(block)
    else:
        held = system.subnets_on_device * mean.state_bytes
    return held + (in_flight - 1) * mean.parameter_bytes * system.stashes


def _kept_bytes(system: System, row: Footprint) -> float:
    """Per sample and subnet under way; what is handed on counts once per stage, elsewhere."""
    return row.input_bytes + (0 if system.recomputes else row.saved_bytes)


def _load(
    table: FootprintTable, system: System, partition: Partition, stage: StageId, in_flight: int
) -> StageLoad:
    blocks = partition.blocks(stage)
    means = [table.mean(block) for block in blocks]
    rows = [row for block in blocks for row in table.candidates(block)]
    flight = system.under_way(in_flight, partition.num_stages - stage)
    fixed = sum(_layer_bytes(table, system, block, flight) for block in blocks)
    fixed = max(fixed, *(row.state_bytes for row in rows))
    fixed += max(row.parameter_bytes for row in rows)
    kept = max(mean.passed_bytes for mean in means)
    kept += sum(_kept_bytes(system, mean) for mean in means)
    # A backward needs the graph it runs through and about as much again in gradients.
    working = max(row.input_bytes + 2 * row.saved_bytes for row in rows)
    return StageLoad(fixed, kept, working)
