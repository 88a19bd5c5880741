"""Measured time per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naspipe.core.subnet import Subnet


class LayerCost(NamedTuple):
    """Nanoseconds of one layer's forward, backward (recompute included), WRITE and making."""

    forward_ns: int
    backward_ns: int
    write_ns: int
    make_ns: int = 0
    """Once, when the layer is first used."""

    @property
    def total_ns(self) -> int:
        """All of one step, the making left out."""
        return self.forward_ns + self.backward_ns + self.write_ns


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs by (block of the chain, candidate); at least one candidate of every block."""

    costs: Mapping[tuple[int, int], LayerCost]
    _means: dict[int, LayerCost] = field(default_factory=dict, repr=False, compare=False)

    def of(self, block: int, candidate: int) -> LayerCost:
        """A layer's cost; the mean of its block's measured candidates if it was not measured."""
        cost = self.costs.get((block, candidate))
        if cost is not None:
            return cost
        if block not in self._means:
            rows = [row for (where, _), row in self.costs.items() if where == block]
            sums = map(sum, zip(*rows, strict=True))
            self._means[block] = LayerCost(*(total // len(rows) for total in sums))
        return self._means[block]

    def stream_means_ns(self, subnets: Sequence[Subnet]) -> list[float]:
        """Mean cost of each block over a stream, layers made at their first use included."""
        sums = [0.0] * len(subnets[0].chain)
        made: set[tuple[int, int]] = set()
        for subnet in subnets:
            for layer in enumerate(subnet.chain):
                cost = self.of(*layer)
                sums[layer[0]] += cost.total_ns + (0 if layer in made else cost.make_ns)
                made.add(layer)
        return [total / len(subnets) for total in sums]
