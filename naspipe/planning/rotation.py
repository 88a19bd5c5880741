"""Partitions that go round: each subnet begins one stage further than the one before it.

On four stages subnet 0 is on 0,1,2,3, subnet 1 on 1,2,3,0, and so on. Subnets that begin together
are so on different stages, and none waits for the first one to be free. That pays where causes
come in bursts, as under the sampler ``fair``: the subnets of a round share no layer, and wait for
the end of the round before. Layers move with their users (``docs/schedule.md``).

Fewer parts than stages are longer, so more equal, and pass fewer stages. On eight stages subnet 0
may be on 0,3,6, subnet 1 on 1,4,7, subnet 2 on 2,5,0.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.config.rules import Exact
from naspipe.config.steps import ONE_PASS
from naspipe.planning.balance import balanced_partition
from naspipe.planning.cost import CostTable
from naspipe.planning.latest_start import CutStream, shortest_ns

FEW = 3
"""Parts that are tried beside one for each stage, and one for every second."""

_ACCESSES, _ROUNDS, _WINDOW = 12_800, 3, 64
"""Of the first subnets, scheduled to choose; how often that is improved; how many run at a time."""


class RotatedPlacement:
    """Cuts subnets, one at a time in sequence order, each for the least peak of its own.

    Parts with layers that every subnet uses stay where the mean of all subnets has them; the other
    parts take turns on the other stages. Without such layers the number of parts is that with the
    shortest list schedule of the first subnets (:mod:`naspipe.planning.latest_start`).

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
        self._parts = num_stages
        if not self._homes:
            first = max(1, _ACCESSES // (2 * len(is_shared)))
            self._parts = self._fastest([each for each in subnets if each.chain][:first])

    def __call__(self, subnet: Subnet) -> Partition:
        """The partition of a subnet."""
        own = self._cut(subnet, self._turn, self._parts)
        self._turn += 1
        return self._made.setdefault(own, own)

    def _cut(self, subnet: Subnet, turn: int, parts: int) -> Partition:
        chain = [self._costs.of(*place).total_ns for place in enumerate(subnet.chain)]
        if parts < self._num_stages:
            return _few_parts(balanced_partition(chain, parts), turn, self._num_stages)
        stages, turning = [*range(self._num_stages)], self._turning
        for place, part in enumerate(turning):
            stages[part] = turning[(place + turn) % len(turning)]
        own = balanced_partition(chain, self._num_stages, self._homes)
        return make_partition(own.bounds, stages)

    def _fastest(self, subnets: Sequence[Subnet]) -> int:
        """How many parts are the fastest; of equal numbers the largest."""
        some = (self._num_stages, -(-self._num_stages // 2), min(FEW, self._num_stages))
        tried = sorted(set(some) - {1}, reverse=True)
        return min(tried, key=lambda parts: self._takes_ns(subnets, parts)) if tried else 1

    def _takes_ns(self, subnets: Sequence[Subnet], parts: int) -> int:
        stream = CutStream(
            subnets=subnets,
            partitions=[self._cut(subnet, turn, parts) for turn, subnet in enumerate(subnets)],
            rules=[Exact()] * len(subnets[0].chain),
            costs=self._costs,
        )
        return shortest_ns([stream], ONE_PASS, _WINDOW, _ROUNDS)


def _few_parts(own: Partition, turn: int, num_stages: int) -> Partition:
    """The parts on stages that are as far from each other as they can be; the others have none."""
    parts = own.num_stages
    apart = -(-num_stages // parts)
    if (parts - 1) * apart >= num_stages:
        apart = num_stages // parts
    stages = [(part * apart + turn) % num_stages for part in range(parts)]
    stages += [stage for stage in range(num_stages) if stage not in stages]
    return make_partition(own.bounds + (own.num_blocks,) * (num_stages - parts), stages)
