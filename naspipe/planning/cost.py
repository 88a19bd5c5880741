"""Measured time per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class LayerCost(NamedTuple):
    """Nanoseconds of one layer's forward, backward (recompute included) and WRITE."""

    forward_ns: int
    backward_ns: int
    write_ns: int

    @property
    def total_ns(self) -> int:
        """All of one step."""
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

    def block_means_ns(self, num_blocks: int) -> list[float]:
        """Mean cost of each block over its measured candidates: what static partitions balance."""
        sums = [0.0] * num_blocks
        counts = [0] * num_blocks
        for (block, _), cost in self.costs.items():
            sums[block] += cost.total_ns
            counts[block] += 1
        return [total / count for total, count in zip(sums, counts, strict=True)]
