"""Measured time per layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naspipe.config.ids import Subnet
from naspipe.config.space import Block, Space


class LayerCost(NamedTuple):
    """Nanoseconds of one layer's forward, backward (recompute included), WRITE and making.

    And what one pass keeps of it.
    """

    forward_ns: int
    backward_ns: int
    write_ns: int
    make_ns: int = 0
    """Once, when the layer is first used."""
    activation_bytes: int = 0
    """Held by one pass from the block's forward to its backward: its inputs and, unless they
    are computed again, the tensors that autograd saves. What blocks hand on counts in each."""
    inputs_ns: int = 0
    """Of a split backward, the part that computes the gradients that are handed on."""
    weights_ns: int = 0
    """Of a split backward, the part that is left until the WRITE: the gradients of the weights.
    Both are 0 where the backward cannot be split."""
    owed_ns: int = 0
    """What ``backward_ns`` leaves until the WRITE: ``weights_ns`` where the backward is split."""

    @property
    def total_ns(self) -> int:
        """All of one pass, the making left out."""
        return self.forward_ns + self.backward_ns + self.owed_ns + self.write_ns

    @property
    def split_ratio(self) -> float:
        """How long both parts of a split backward take, over the whole one; 0 for no parts.

        Of a measured cost, whose ``backward_ns`` is that of the whole one.
        """
        return (self.inputs_ns + self.weights_ns) / max(1, self.backward_ns)

    @property
    def split(self) -> LayerCost:
        """The cost with a split backward, where it can be split."""
        if not self.inputs_ns and not self.weights_ns:
            return self
        return self._replace(backward_ns=self.inputs_ns, owed_ns=self.weights_ns)


COLUMNS = ("block", "option", *LayerCost._fields)
"""Of a table as rows."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs by (block of the chain, option); at least one option of every block.

    An option is a candidate, or a setting of an elastic layer.
    """

    costs: Mapping[tuple[int, int], LayerCost]
    whole: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Options that were measured and whose backward cannot be split, each with the reason."""
    _means: dict[int, LayerCost] = field(default_factory=dict, repr=False, compare=False)

    def of(self, block: int, option: int) -> LayerCost:
        """An option's cost; the mean of its block's measured options if it was not measured."""
        cost = self.costs.get((block, option))
        if cost is not None:
            return cost
        if block not in self._means:
            rows = [row for (where, _), row in self.costs.items() if where == block]
            sums = map(sum, zip(*rows, strict=True))
            self._means[block] = LayerCost(*(total // len(rows) for total in sums))
        return self._means[block]

    def split(self, chosen: Container[tuple[int, int]]) -> CostTable:
        """The table where the backwards of these options of blocks are split."""
        return CostTable(
            {place: cost.split if place in chosen else cost for place, cost in self.costs.items()},
            self.whole,
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[int]]) -> CostTable:
        """The table whose :attr:`rows` these are."""
        return cls({(block, option): LayerCost(*cost) for block, option, *cost in rows})

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """Numbers by :data:`COLUMNS`, in the order of blocks and options."""
        return [(*place, *cost) for place, cost in sorted(self.costs.items())]

    def stream_means_ns(self, subnets: Sequence[Subnet]) -> list[float]:
        """Mean cost of each block over a stream, layers made at their first use included."""
        uses = Counter(place for subnet in subnets for place in enumerate(subnet.chain))
        layers = {subnet.layer(block) for subnet in subnets for block in range(len(subnet.chain))}
        sums = [0.0] * max(len(subnet.chain) for subnet in subnets)
        for (block, option), count in uses.items():
            sums[block] += self.of(block, option).total_ns * count
        for layer in layers:
            sums[layer.block] += self.of(layer.block, layer.candidate).make_ns
        return [total / len(subnets) for total in sums]


def mean_costs(tables: Sequence[CostTable]) -> CostTable:
    """The mean of several measurements, of the layers that are in each of them."""
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
    """For each block of the chain, the first block with the same candidates.

    What is measured there holds for all of them. A block that names no kind, and a shared
    layer, is its own.
    """
    seen: dict[tuple[str, int], int] = {}
    return tuple(
        seen.setdefault((block.kind, block.num_options), index)
        if isinstance(block, Block) and block.kind is not None
        else index
        for index, block in enumerate(space.blocks)
    )
