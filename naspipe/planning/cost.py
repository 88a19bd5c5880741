"""Measured time per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

    def block_means_ns(self, num_blocks: int) -> list[float]:
        """Mean cost of each block over its measured candidates: what static partitions balance."""
        sums = [0.0] * num_blocks
        counts = [0] * num_blocks
        for (block, _), cost in self.costs.items():
            sums[block] += cost.total_ns
            counts[block] += 1
        return [total / count for total, count in zip(sums, counts, strict=True)]
