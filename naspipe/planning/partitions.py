"""A partition for every subnet of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from naspipe.config.definition import PARTITIONS
from naspipe.config.errors import ConfigError
from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.planning.balance import balanced_partition
from naspipe.planning.cost import CostTable
from naspipe.planning.rotation import RotatedPlacement

NEAR = 0.01
"""Part of a subnet's least peak that it gives up to be cut near where the others are: fewer
layers then change stages from user to user, and have to be mirrored."""


KEPT = 0.97
"""Part of a stage's backlog that is still there for the next subnet."""

COUNTED = 0.5
"""Part of a stage's backlog that counts as the next subnet's cost there: with all of it, single
subnets are cut so unevenly that those that others wait for take longer. Both were chosen on seeds
0 to 2 with the costs of Table 5, 8 stages: `spaced` and `fair` leave 0.02 to 0.03 less bubble."""


class Partitioner:
    """Cuts subnets, one at a time in sequence order; equal partitions are one object.

    ``static``: the partition that balances the mean costs, for all. ``balanced``: each subnet
    its own least peak, give or take ``slack``, as near to the static one as that allows; shared
    layers stay on the stage where the static one has them. What earlier subnets gave a stage beyond
    the mean of all stages is its backlog and counts too, less and less: whole blocks divide
    no single subnet evenly, but a stage that got too much of one gets less of the next.

    Args:
        kind: ``balanced`` or ``static``.
        subnets: whose mean costs are balanced, at least one: the stream, or what stands for it.
        is_shared: for each block of the chain, whether every subnet uses its only layer.
        costs: of every layer.
        num_stages: of every partition.
        slack: see :data:`NEAR`.

    Raises:
        ConfigError: for another kind, or more stages than blocks.
    """

    def __init__(
        self,
        kind: str,
        subnets: Sequence[Subnet],
        is_shared: Sequence[bool],
        costs: CostTable,
        num_stages: int,
        slack: float = NEAR,
    ) -> None:
        if kind not in ("balanced", "static"):
            raise ConfigError(f"partition {kind!r:.80}: expected balanced or static")
        static = balanced_partition(costs.stream_means_ns(subnets), num_stages)
        self._static = static
        self._is_one = kind == "static" or num_stages == 1
        self._homes = {
            block: static.stage_of(block) for block, shared in enumerate(is_shared) if shared
        }
        self._costs = costs
        self._slack = slack
        self._backlog = [0] * num_stages
        self._made = {static: static}

    def __call__(self, subnet: Subnet) -> Partition:
        """The partition of a subnet."""
        if self._is_one:
            return self._static
        chain = _block_costs(subnet, self._costs)
        counted = [int(COUNTED * before) for before in self._backlog]
        own = balanced_partition(
            chain, self._static.num_stages, self._homes, self._static, self._slack, counted
        )
        mean = sum(chain) // own.num_stages
        self._backlog = [
            int(KEPT * (before + sum(chain[low:high]) - mean))
            for before, (low, high) in zip(self._backlog, pairwise(own.bounds), strict=True)
        ]
        return self._made.setdefault(own, own)


Cutter = Callable[[Subnet], Partition]
Placement = Callable[[Sequence[Subnet], Sequence[bool], CostTable, int], Cutter]
"""Makes what cuts the subnets of one stream: asked for each, in sequence order. It is given the
stream (or what stands for it), whether each block is shared, costs, and the number of stages."""

PLACEMENTS: dict[str, Placement] = {
    "balanced": partial(Partitioner, "balanced"),
    "static": partial(Partitioner, "static"),
    "rotated": RotatedPlacement,
}
"""Which stage runs which blocks, by the names of the setting ``partition``."""


def register_placement(name: str, placement: Placement) -> None:
    """Let a placement be chosen by a name."""
    PLACEMENTS[name] = placement
    if name not in PARTITIONS:
        PARTITIONS.append(name)


def peak_to_mean(
    subnets: Sequence[Subnet], partitions: Sequence[Partition], costs: CostTable
) -> list[float]:
    """For each subnet, the time of its dearest stage over the mean of its stages.

    1.0 is a perfect balance, the number of stages the worst.
    """
    ratios: list[float] = []
    for subnet, partition in zip(subnets, partitions, strict=True):
        chain = _block_costs(subnet, costs)
        stages = [sum(chain[low:high]) for low, high in pairwise(partition.bounds)]
        total = sum(stages)
        ratios.append(max(stages) * len(stages) / total if total else 1.0)
    return ratios


def _block_costs(subnet: Subnet, costs: CostTable) -> list[int]:
    """Nanoseconds of one pass in each block; what is done once, a layer's making, left out."""
    of = costs.of
    return [of(block, candidate).total_ns for block, candidate in enumerate(subnet.chain)]
