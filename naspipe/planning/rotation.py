"""Partitions that go round: each subnet begins one stage further than the one before it.

On four stages subnet 0 is on 0,1,2,3, subnet 1 on 1,2,3,0, and so on. Subnets that begin together
are so on different stages, and none waits for the first one to be free. That pays where causes
come in bursts, as under the sampler ``fair``: the subnets of a round share no layer, and wait for
the end of the round before. Layers move with their users (``docs/schedule.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.core.partition import Partition, make_partition
from naspipe.core.subnet import Subnet
from naspipe.planning.balance import balanced_partition
from naspipe.planning.cost import CostTable


class RotatedPlacement:
    """Cuts subnets, one at a time in sequence order, each for the least peak of its own.

    Parts with layers that every subnet uses stay where the mean of all subnets has them; the other
    parts take turns on the other stages.

    Args:
        subnets: whose mean costs say where shared layers are, at least one.
        is_shared: for each block of the chain, whether every subnet uses its only layer.
        costs: of every layer.
        num_stages: of every partition.

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
        mean = balanced_partition(costs.stream_means_ns(subnets), num_stages)
        self._homes: dict[int, int] = {
            block: mean.stage_of(block) for block, shared in enumerate(is_shared) if shared
        }
        self._turning = sorted(set(range(num_stages)) - set(self._homes.values()))
        self._costs, self._num_stages = costs, num_stages
        self._turn = 0
        self._made: dict[Partition, Partition] = {}

    def __call__(self, subnet: Subnet) -> Partition:
        """The partition of a subnet."""
        chain = [self._costs.of(*place).total_ns for place in enumerate(subnet.chain)]
        stages, turning = [*range(self._num_stages)], self._turning
        for place, part in enumerate(turning):
            stages[part] = turning[(place + self._turn) % len(turning)]
        self._turn += 1
        own = balanced_partition(chain, self._num_stages, self._homes)
        own = make_partition(own.bounds, stages)
        return self._made.setdefault(own, own)
