"""Costs and sizes of layers, and quantities derived from the machine's properties alone.

``CostTable`` holds measured times, ``SizeTable`` exact sizes. ``shapes`` lists the ways to divide a
number of devices into groups of stages, and ``plan_window`` returns how many subnets may be under
way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import Subnet
from naspipe.config.space import Space
from naspipe.config.steps import Steps
from naspipe.config.text import parse_bytes


class LayerCost(NamedTuple):
    """Nanoseconds of one layer's forward, backward (recompute included), WRITE and initialization.

    Also the bytes that one pass keeps of it.
    """

    forward_ns: int
    backward_ns: int
    write_ns: int
    make_ns: int = 0
    """Spent once, when the layer is first used."""
    activation_bytes: int = 0
    """Held by one pass from the block's forward to its backward: its inputs and, unless they are
    recomputed, the tensors that autograd saves. A tensor passed between blocks counts in each of
    them."""
    inputs_ns: int = 0
    """For a split backward, the part that computes the gradients of the inputs."""
    weights_ns: int = 0
    """For a split backward, the part that is deferred to the WRITE: the gradients of the weights.
    Both are 0 if the backward cannot be split."""
    owed_ns: int = 0
    """The part of the backward deferred to the WRITE: ``weights_ns`` if the backward is split, else
    0."""

    @property
    def total_ns(self) -> int:
        """The time of one pass, without the initialization of the layer."""
        return self.forward_ns + self.backward_ns + self.owed_ns + self.write_ns

    @property
    def split_ratio(self) -> float:
        """Time of a split backward relative to the whole one; 0 if it cannot be split.

        Only meaningful for a measured cost, whose ``backward_ns`` is that of the whole backward.
        """
        return (self.inputs_ns + self.weights_ns) / max(1, self.backward_ns)

    @property
    def split(self) -> LayerCost:
        """The cost with a split backward, if it can be split."""
        if not self.inputs_ns and not self.weights_ns:
            return self
        return self._replace(backward_ns=self.inputs_ns, owed_ns=self.weights_ns)


COLUMNS = ("block", "option", *LayerCost._fields)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs by (block of the chain, option); at least one option of every block.

    An option is a candidate, or a setting of an elastic layer.
    """

    costs: Mapping[tuple[int, int], LayerCost]
    whole: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Measured options whose backward cannot be split, each with the reason."""
    _means: dict[int, LayerCost] = field(default_factory=dict, repr=False, compare=False)

    def of(self, block: int, option: int) -> LayerCost:
        """Return an option's cost, or else the mean of its block's measured options."""
        cost = self.costs.get((block, option))
        if cost is not None:
            return cost
        if block not in self._means:
            rows = [row for (where, _), row in self.costs.items() if where == block]
            sums = map(sum, zip(*rows, strict=True))
            self._means[block] = LayerCost(*(total // len(rows) for total in sums))
        return self._means[block]

    def split(self, chosen: Container[tuple[int, int]]) -> CostTable:
        return CostTable(
            {place: cost.split if place in chosen else cost for place, cost in self.costs.items()},
            self.whole,
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[int]]) -> CostTable:
        return cls({(block, option): LayerCost(*cost) for block, option, *cost in rows})

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The values of :data:`COLUMNS`, in the order of blocks and options."""
        return [(*place, *cost) for place, cost in sorted(self.costs.items())]

    def stream_means_ns(self, subnets: Sequence[Subnet]) -> list[float]:
        """Return each block's mean cost over a stream, including the initialization of layers."""
        uses = Counter(place for subnet in subnets for place in enumerate(subnet.chain))
        layers = {subnet.layer(block) for subnet in subnets for block in range(len(subnet.chain))}
        sums = [0.0] * max(len(subnet.chain) for subnet in subnets)
        for (block, option), count in uses.items():
            sums[block] += self.of(block, option).total_ns * count
        for layer in layers:
            sums[layer.block] += self.of(layer.block, layer.candidate).make_ns
        return [total / len(subnets) for total in sums]


def mean_costs(tables: Sequence[CostTable]) -> CostTable:
    """Return the mean of several measurements, for the layers that all of them contain."""
    if len(tables) == 1:
        return tables[0]
    common = set.intersection(*(set(table.costs) for table in tables))
    rows = {place: [table.costs[place] for table in tables] for place in sorted(common)}
    return CostTable(
        {
            place: LayerCost(*(sum(column) // len(own) for column in zip(*own, strict=True)))
            for place, own in rows.items()
        },
        {place: why for place, why in tables[0].whole.items() if place in rows},
    )


def first_of_kind(space: Space) -> tuple[int, ...]:
    """Return, for each block of the chain, the first block with the same candidates.

    Measurements of that block hold for all of them. A block without a kind, or with a shared layer,
    only represents itself.
    """
    seen: dict[tuple[str, int], int] = {}
    return tuple(
        seen.setdefault((block.kind, block.num_options), index)
        if isinstance(block, Block) and block.kind is not None
        else index
        for index, block in enumerate(space.blocks)
    )


class LayerSize(NamedTuple):
    """The size of one layer on the device; each tensor takes a multiple of 512 bytes."""

    state_bytes: int
    """Bytes of parameters, buffers and optimizer state, which are allocated while the layer is
    resident."""
    parameter_bytes: int
    writes_forward: bool
    """True if a forward may change the layer, because it has buffers, such as the running
    statistics of a normalisation; which of them a forward writes is not checked."""


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Exact sizes of every layer of a space; blocks of one kind share their rows."""

    twins: tuple[int, ...]
    rows: Mapping[int, tuple[LayerSize, ...]]
    """One size per candidate, by the first block of each kind."""

    def of(self, block: int, candidate: int) -> LayerSize:
        return self.rows[self.twins[block]][candidate]


AUTO = "auto"
"""Value of the number of stages that lets naspipe choose it."""


class Shape(NamedTuple):
    """The number of groups, and of stages in each group."""

    groups: int
    stages: int

    @property
    def workers(self) -> int:
        return self.groups * self.stages

    def __str__(self) -> str:
        return f"{self.groups} x {self.stages}" if self.groups > 1 else f"{self.stages}"


def counts(devices: int) -> list[int]:
    return sorted({devices, *(1 << power for power in range(devices.bit_length()))})


def shapes(devices: int, num_blocks: int, passes: int) -> list[Shape]:
    """Return the shapes on 1, 2, 4, ... and all devices; each group has a pass of every step.

    Fewer devices come first. Each stage of a group has at least one block, so some devices may be
    idle.
    """
    found = [
        Shape(groups, min(count // groups, num_blocks))
        for count in counts(devices)
        for groups in range(1, min(count, passes) + 1)
        if count % groups == 0 and (groups == 1 or count // groups <= num_blocks)
    ]
    return list(dict.fromkeys(found))


WIDEST = 16
"""Number of sequence IDs under way, unless the user sets it."""
MORE_THAN_STAGES = 4
"""With a memory budget, the window exceeds the number of stages by this number of steps. More
subnets hardly fill a bubble, but each takes memory from earlier ones. Simulated without the time of
copies, ``nlp.c1``, ``nlp.c2``, ``cv.c1`` and ``cv.c3`` on 2, 4 and 8 stages, ``uniform`` and
``spaced:8``: at most 1 % slower than with 16. ``nlp.c2`` with memory for 1.5 subnets on 2 stages: 8
% fewer loads."""


def plan_window(execution: Execution, steps: Steps, kept_bytes: int) -> int:
    """Return the window of a stream's admission.

    Raises:
        ConfigError: if a single step does not fit ``activation_memory``.
    """
    window = execution.pipeline.window or WIDEST
    if not execution.pipeline.window and execution.memory.budget:
        window = min(WIDEST, (execution.pipeline.stages + MORE_THAN_STAGES) * steps.trained)
    if not execution.memory.activations:
        return window
    limit_bytes, passes = parse_bytes(execution.memory.activations), steps.trained
    if kept_bytes * passes > limit_bytes:
        whose = "one subnet keeps" if passes == 1 else f"the {passes} passes of a step keep"
        raise ConfigError(
            f"activation_memory: expected at least {kept_bytes * passes} bytes, which {whose} on "
            f"one stage, found {limit_bytes}; use --recompute, more stages or a smaller batch"
        )
    return min(window, limit_bytes // max(1, kept_bytes))
