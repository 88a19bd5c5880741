"""AMPA, the partitioner of GroPipe (IEEE Trans. Computers 2025), as a baseline.

A script that calls :func:`register` can plan, simulate or train with ``partition="ampa"``.

Start with as many layers in each partition. Take the dearest partition; then, again and again, the
cheapest one, and move a layer into it from its neighbour on the side of the dearest, until that
neighbour was the dearest itself. The printed algorithm has no end of its own: mostly it goes round.
Here it ends when a cut comes back or a partition would be empty, and the best cut on the way is
taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.plan.costs import CostTable
from naspipe.plan.partitions import register_placement

Bounds = tuple[int, ...]


def register() -> None:
    """Let the placement ``ampa`` be chosen in this process and in those forked from it."""
    register_placement("ampa", AmpaPlacement)


class AmpaPlacement:
    """One partition for all subnets of a stream, from their mean costs.

    Args:
        subnets: whose mean costs are cut, at least one.
        is_shared: not looked at.
        costs: of every layer.
        num_stages: of the partition.

    Raises:
        ConfigError: for more stages than blocks.
    """

    def __init__(
        self,
        subnets: Sequence[Subnet],
        is_shared: Sequence[bool],
        costs: CostTable,
        num_stages: int,
    ) -> None:
        self._partition = ampa_partition(costs.stream_means_ns(subnets), num_stages)

    def __call__(self, subnet: Subnet) -> Partition:
        """The partition of every subnet."""
        return self._partition


def ampa_partition(costs: Sequence[float], num_stages: int) -> Partition:
    """The best of the cuts that AMPA goes through: the one with the least dearest stage.

    Args:
        costs: of each block, in any unit.
        num_stages: at most as many as there are blocks.

    Raises:
        ConfigError: for more stages than blocks.
    """
    if not 1 <= num_stages <= len(costs):
        raise ConfigError(
            f"partition ampa: expected 1 to {len(costs)} stages for {len(costs)} blocks, found "
            f"{num_stages}"
        )
    best = min(ampa_cuts(costs, num_stages), key=lambda bounds: max(sums(costs, bounds)))
    return make_partition(best)


def ampa_cuts(costs: Sequence[float], num_stages: int) -> Iterator[Bounds]:
    """Every cut on the way, the one into equal numbers of layers first."""
    least, most = min(costs), max(costs)
    normed = [(cost - least) / (most - least) if most > least else 1.0 for cost in costs]
    cut = [round(stage * len(costs) / num_stages) for stage in range(num_stages + 1)]
    yield tuple(cut)
    seen: set[tuple[Bounds, int]] = set()
    dearest = _dearest(normed, cut)
    while (tuple(cut), dearest) not in seen:
        seen.add((tuple(cut), dearest))
        stages = sums(normed, cut)
        cheapest = stages.index(min(stages))
        if cheapest == dearest:
            return
        is_left = cheapest < dearest
        neighbour = cheapest + 1 if is_left else cheapest - 1
        if cut[neighbour + 1] - cut[neighbour] == 1:
            return
        cut[cheapest + 1 if is_left else cheapest] += 1 if is_left else -1
        yield tuple(cut)
        if neighbour == dearest:
            dearest = _dearest(normed, cut)


def projected_ns(stages_ns: Sequence[float], passes: int) -> float:
    """GroPipe's performance projection: the forwards of a step's passes on unequal stages.

    The dearest stage is busy with every pass; the others are waited for once. A backward takes as
    long. With equal stages the gain over one pass is k m / (m + k - 1).
    """
    return passes * max(stages_ns) + sum(stages_ns) - max(stages_ns)


def sums(costs: Sequence[float], bounds: Sequence[int]) -> list[float]:
    """The cost of each partition."""
    return [sum(costs[low:high]) for low, high in pairwise(bounds)]


def _dearest(costs: Sequence[float], bounds: Sequence[int]) -> int:
    stages = sums(costs, bounds)
    return stages.index(max(stages))
